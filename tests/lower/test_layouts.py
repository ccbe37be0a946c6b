"""Results of products in the order in which other products load them: no transposes between."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from neuronjax.engine_compiler import lower_program
from neuronjax.program.program import Target
from neuronjax.program.tensor_engine import TensorTranspose
from neuronjax.program.verify import verify
from neuronjax.program.walk import instructions
from tests.lower.differential import CHIP, SUM, Tolerance, check, emulated, lowered_function, orders

RNG = np.random.default_rng(0)
NHWC = ("NHWC", "HWIO", "NHWC")


class Case(NamedTuple):
    function: Callable[..., jax.Array]
    arguments: tuple[np.ndarray, ...]
    #: Transposes of operands from outside alone.
    transposes: int
    tolerance: Tolerance = SUM
    numerics: str = "ieee"


def floats(*shape: int) -> np.ndarray:
    return 0.2 * RNG.standard_normal(shape, np.float32)


def conv(x: jax.Array, w: jax.Array, stride: int = 1) -> jax.Array:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=NHWC)


def block(x: jax.Array, u: jax.Array, v: jax.Array, w: jax.Array) -> jax.Array:
    x = conv(x, u)
    return (x + conv(jax.nn.relu(conv(x, v)), w)).mean((1, 2))


def pooled(x: jax.Array, u: jax.Array, v: jax.Array) -> jax.Array:
    """The greatest of windows that reach over the edge."""
    x = jax.nn.relu(conv(x, u)) - 1
    window = ((1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))
    return conv(lax.reduce_window(x, -jnp.inf, lax.max, *window), v)


def heads(x: jax.Array, q: jax.Array, k: jax.Array) -> jax.Array:
    """Scores of two heads."""
    queries, keys = (jnp.einsum("btm,mhd->bthd", x, each) for each in (q, k))
    return jnp.einsum("bqhd,bkhd->bhqk", queries, keys)


IMAGE, TAPS = floats(2, 9, 8, 4), floats(3, 3, 4, 40)
INNER = (floats(3, 3, 40, 40), floats(3, 3, 40, 40))
CASES = {
    "two layers": Case(
        lambda x, u, b, v: jax.nn.relu(x @ u + b) @ v,
        (floats(48, 64), floats(64, 96), floats(96), floats(96, 32)),
        1,
    ),
    "few rows": Case(
        lambda x, u, v: (x @ u) @ v, (floats(8, 64), floats(64, 96), floats(96, 32)), 1
    ),
    "heads": Case(heads, (floats(2, 40, 64), floats(64, 2, 32), floats(64, 2, 32)), 1),
    "convolutions": Case(lambda x, u, v: conv(conv(x, u), v), (IMAGE, TAPS, INNER[0]), 1),
    "an activation in two bytes": Case(
        lambda x, u, s, v: conv(
            jax.nn.relu((conv(x, u).astype(s.dtype) * s + s).astype(x.dtype)), v
        ),
        (
            *(array.astype(jnp.bfloat16) for array in (IMAGE, TAPS)),
            floats(40),
            INNER[0].astype(jnp.bfloat16),
        ),
        1,
        Tolerance(ulps=2, relative=1e-2),
        "chip",
    ),
    "strides": Case(lambda x, u, v: conv(conv(x, u), v, 2), (IMAGE, TAPS, INNER[0]), 1),
    "pooling": Case(pooled, (IMAGE, TAPS, INNER[0]), 2),
    "block": Case(block, (IMAGE, TAPS, *INNER), 1),
    "result as well": Case(
        lambda x, u, v: (x @ u, x @ u @ v), (floats(48, 64), floats(64, 96), floats(96, 32)), 2
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_products_load_each_other_as_they_are(name: str) -> None:
    case = CASES[name]
    program = check(
        case.function, *case.arguments, tolerance=case.tolerance, numerics=case.numerics
    )
    assert verify(program) == ()
    found = sum(isinstance(each, TensorTranspose) for _, each in instructions(program))
    assert found == case.transposes


@pytest.mark.parametrize("name", CASES)
def test_values_are_the_same_in_every_order(name: str) -> None:
    case = CASES[name]
    _, code = lowered_function(case.function, *case.arguments)
    program = lower_program(code, Target(CHIP), 1)
    want = emulated(program, code, [list(case.arguments)])
    for order in orders(2):
        found = emulated(program, code, [list(case.arguments)], order=order)
        assert all(map(np.array_equal, found[0], want[0]))
