"""Several operations as one instruction: the same bits, and as few instructions as expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from neuronjax.machine.specs import Engine
from neuronjax.program.verify import verify
from neuronjax.program.walk import instructions
from tests.lower.differential import (
    EXACT,
    FUNCTION,
    SUM,
    Tolerance,
    check,
    lowered,
    lowered_function,
)

RNG = np.random.default_rng(0)
X, Y = (RNG.standard_normal((128, 96), np.float32) for _ in range(2))
ROW = RNG.standard_normal((128, 1), np.float32)
MASK = RNG.random((128, 96)) < 0.5


class Case(NamedTuple):
    function: Callable[..., jax.Array]
    arguments: tuple[np.ndarray, ...]
    #: Of Vector and Scalar.
    instructions: int
    tolerance: Tolerance = EXACT


def softmax(x: jax.Array, mask: jax.Array) -> jax.Array:
    x = jnp.where(mask, x, -1e30)
    return jnp.exp(x - x.max(-1, keepdims=True)).astype(jnp.bfloat16)


CASES = {
    "two constants": Case(lambda x: lax.max(x + 1, 0.0), (X,), 1),
    "constant from the left": Case(lambda x: (1 - x) * 2, (X,), 1),
    "rows": Case(lambda x, r: (x - r) * r, (X, ROW), 1),
    "scalar, then tensor": Case(lambda x, y, r: x * r + y, (X, Y, ROW), 1, SUM),
    "tensor from the left": Case(lambda x, y, r: y - x * r, (X, Y, ROW), 1, SUM),
    "function of a scaled sum": Case(lambda x, r: jnp.exp(x * 0.5 + r), (X, ROW), 1, FUNCTION),
    "function of a difference": Case(lambda x: jnp.tanh(x / 2 - 1), (X,), 1, FUNCTION),
    "narrow result": Case(lambda x: (jnp.tanh(x) * 2).astype(jnp.bfloat16), (X,), 2, FUNCTION),
    "value that others need": Case(lambda x: (x + 1, (x + 1) * 2), (X,), 2),
    "selection of a constant": Case(lambda x, m: jnp.where(m, x, 7), (X, MASK), 1),
    "selection where it does not hold": Case(lambda x, m: jnp.where(m, 7, x), (X, MASK), 1),
    "masked exponentials": Case(softmax, (X, MASK), 3, SUM),
}


@pytest.mark.parametrize("name", CASES)
def test_operations_fall_together(name: str) -> None:
    case = CASES[name]
    program = check(case.function, *case.arguments, tolerance=case.tolerance)
    engines = (Engine.VECTOR, Engine.SCALAR)
    assert sum(each.engine in engines for _, each in instructions(program)) == case.instructions


@pytest.mark.parametrize("chip", ["trainium1", "trainium2", "trainium3"])
@pytest.mark.parametrize("name", CASES)
def test_every_generation_has_the_instructions(name: str, chip: str) -> None:
    _, code = lowered_function(CASES[name].function, *CASES[name].arguments)
    assert verify(lowered(code, chip=chip)) == ()
