"""For which kernels another order is looked for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from neuronjax.lower.schedule.worthwhile import Prospect, choose_kinds, shares_of
from neuronjax.lower.tuning import DEFAULT
from neuronjax.program.program import Kernel, Program, Split, Target
from tests.lower.differential import CHIP


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of kernels that promises something."""

    prospect: Prospect


PROMISING = Kind(Prospect(time=1e6, gain=5e5, size=10))
LITTLE = Kind(Prospect(time=1e5, gain=1e3, size=400))


@pytest.mark.parametrize("are_beside", [True, False], ids=["of one split", "one after the other"])
def test_a_kernel_beside_one_that_gains_is_looked_at(are_beside: bool) -> None:
    """A split takes as long as the slower of its kernels; alone, so little is not worth it."""
    first, second = (Kernel(name=name, body=()) for name in ("first", "second"))
    split = Split(name="both", kernels=(first, second))
    body = (split,) if are_beside else (first, second)
    program = Program(name="main", target=Target(CHIP), body=body)
    kinds = {id(first): PROMISING, id(second): LITTLE}
    shares = shares_of(program, kinds, DEFAULT.unknown_trips)
    wanted = {PROMISING, LITTLE} if are_beside else {PROMISING}
    assert choose_kinds(shares, DEFAULT) == wanted
