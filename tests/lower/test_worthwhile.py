"""For which kernels another order is looked for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from neuronjax.lower.schedule.worthwhile import Prospect, worthwhile
from neuronjax.program.program import Kernel, Program, Split, Target
from tests.lower.differential import CHIP

PROMISING = Prospect(time=1e6, gain=5e5, size=10)
LITTLE = Prospect(time=1e5, gain=1e3, size=400)


@pytest.mark.parametrize("are_beside", [True, False], ids=["of one split", "one after the other"])
def test_a_kernel_beside_one_that_gains_is_looked_at(are_beside: bool) -> None:
    """A split takes as long as the slower of its kernels; alone, so little is not worth it."""
    first, second = (Kernel(name=name, body=()) for name in ("first", "second"))
    split = Split(name="both", kernels=(first, second))
    body = (split,) if are_beside else (first, second)
    program = Program(name="main", target=Target(CHIP), body=body)
    candidates = {
        id(kernel): SimpleNamespace(prospect=prospect)
        for kernel, prospect in ((first, PROMISING), (second, LITTLE))
    }
    wanted = {id(first), id(second)} if are_beside else {id(first)}
    assert worthwhile(program, candidates) == wanted
