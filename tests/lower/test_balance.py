"""Element-wise work that two engines share: the same values, on engines that have the operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.machine.specs import Engine
from neuronjax.program.operand import Access, Memory
from neuronjax.program.verify import verify
from neuronjax.program.walk import instructions
from tests.lower.differential import SUM, Tolerance, check, lowered, lowered_function

RNG = np.random.default_rng(0)
CHIPS = ("trainium1", "trainium2", "trainium3")


class Case(NamedTuple):
    function: Callable[..., jax.Array]
    arguments: tuple[np.ndarray, ...]
    tolerance: Tolerance = SUM


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


CASES = {
    "relu of a product": Case(lambda x, w: jax.nn.relu(x @ w), (floats(256, 64), floats(64, 1024))),
    "scaled product": Case(lambda x, w: (x @ w) * 0.125, (floats(256, 64), floats(64, 1024))),
    "narrow product": Case(
        lambda x, w: (x @ w).astype(jnp.bfloat16),
        (floats(256, 64), floats(64, 1024)),
        Tolerance(ulps=1),  # FP32 sums that differ a little may round to neighbours
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_two_engines_empty_psum(name: str) -> None:
    case = CASES[name]
    program = check(case.function, *case.arguments, tolerance=case.tolerance)
    engines = Counter(
        each.engine
        for _, each in instructions(program)
        if any(isinstance(a, Access) and a.memory is Memory.PSUM for a in each.reads())
    )
    assert engines[Engine.SCALAR] > 0
    assert engines[Engine.VECTOR] > 0


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", CASES)
def test_engines_have_what_is_moved(name: str, chip: str) -> None:
    case = CASES[name]
    _, code = lowered_function(case.function, *case.arguments)
    assert verify(lowered(code, chip=chip)) == ()
