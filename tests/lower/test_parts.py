"""Concatenations whose operands are made in their memory; what is rounded before it is moved; and
biases that are added before a transposed convolution is rearranged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from neuronjax.program.dma import DmaCopy
from neuronjax.program.operand import Memory
from neuronjax.program.program import Program
from neuronjax.program.verify import verify
from neuronjax.program.walk import instructions, kernels
from tests.lower.differential import (
    EXACT,
    SUM,
    Tolerance,
    check,
    host_operations,
    lowered_function,
)  # fmt: skip

RNG = np.random.default_rng(0)
NHWC = ("NHWC", "HWIO", "NHWC")


def _numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def _beside(*values: Any) -> jax.Array:
    return jnp.concatenate(values, axis=-1)


def _pooled(x: jax.Array) -> jax.Array:
    window = (1, 2, 2, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")


def _convolved(x: jax.Array, w: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC)


def _enlarged(x: jax.Array, w: jax.Array, padding: str = "VALID") -> jax.Array:
    return lax.conv_transpose(x, w, (2, 2), padding, dimension_numbers=NHWC)


def _overwritten(x: jax.Array, y: jax.Array) -> Any:
    """The concatenation changes in its place while a part of it is still to be read."""
    part = x * 2
    whole = lax.dynamic_update_slice(_beside(part, y + 1), jnp.zeros((4, 9)), (1, 2))
    return whole @ whole.T, jnp.exp(part).T @ whole


def _carried(x: jax.Array, y: jax.Array) -> jax.Array:
    def step(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
        return _beside(carry[:, 128:] * 0.5, jnp.tanh(carry[:, :128])), None

    return lax.scan(step, _beside(x, y), length=3)[0]


def _heads_of_both(x: jax.Array, y: jax.Array, w: jax.Array) -> jax.Array:
    """Heads of two streams, which are parts of a product's width, with the heads outermost."""
    both = jnp.concatenate([(z @ w).reshape(-1, 4, 32) for z in (x, y)])
    return jnp.tanh(both.transpose(1, 0, 2))


A, B = _numbers(40, 128), _numbers(40, 128)
W, V = _numbers(128, 128), _numbers(128, 256)
IMAGE, SKIPPED = _numbers(1, 6, 6, 16), _numbers(1, 12, 12, 16)
UP, BIAS, DOWN = _numbers(2, 2, 16, 16), _numbers(16), _numbers(3, 3, 32, 8)
SPECIAL = _numbers(1, 12, 12, 128)
SPECIAL[0, 0, :, 0], SPECIAL[0, 3, 2], SPECIAL[0, :, ::3, 5] = -np.inf, np.inf, -0.0

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Tolerance, int | None]] = {
    "of chains": (lambda a, b: _beside(a * 2, b + a), (A, B), EXACT, 0),
    "one after the other": (
        lambda a, b: jnp.concatenate([a * 2, b + a, -b]) * 3, (A, B), EXACT, 0
    ),
    "with an argument": (lambda a, b: _beside(a * 2, b), (A, B), EXACT, 1),
    "with one value twice": (lambda a: (lambda c: _beside(c, c))(a * 2), (A,), EXACT, 1),
    "of products": (
        lambda a, w, v: _beside(a @ w, jax.nn.relu(a @ v)), (A, W, V), SUM, 0
    ),
    "read by others": (
        lambda a, b: (lambda c: _beside(c, b * b) + c.sum())(a * 2), (A, B), SUM, 0
    ),
    "of products, in the order of heads": (_heads_of_both, (A, B[:7], W), SUM, 2),
    "of transposed parts": (
        lambda a, b: jnp.concatenate([(a * 2).T.reshape(128, 5, 8), (b * 2).T.reshape(128, 5, 8)]),
        (A, B), EXACT, 2,
    ),
    "of concatenations": (
        lambda a, b: jnp.concatenate([_beside(a * 2, b * 3), _beside(b * 5, a * 7)]),
        (A, B), EXACT, 4,
    ),
    "beside a result": (lambda a, b: (lambda c: (c, _beside(c, b * 3)))(a * 2), (A, B), EXACT, 1),
    "of integers": (
        lambda a: _beside(a * 2, a + 1), (RNG.integers(-9, 9, (40, 128), np.int32),), EXACT, 0
    ),
    "of a value and an update of it": (
        lambda a, i: (lambda c: jnp.concatenate([
            c, lax.dynamic_update_slice(c, a[:1] * 3, (i, 0))
        ]))(a * 2),
        (A, np.int32(3)), EXACT, 1,
    ),
    "that is changed in its place": (_overwritten, (A[:, :64], B[:, :64]), SUM, 1),
    "carried by a loop": (_carried, (A, B), SUM, 3),
    "within padding": (
        lambda a, b: jnp.pad(_beside(a * 2, b * 3), ((1, 2), (3, 1))) * 2, (A, B), EXACT, 0
    ),
    "rounded": (
        lambda a, b: _beside(jnp.sin(a), jnp.cos(b)).astype(jnp.bfloat16), (A, B),
        Tolerance(roundings=1), 0,
    ),
    "arguments, rounded": (
        lambda a, b: _beside(a, b).astype(jnp.bfloat16) * 2, (A, B), EXACT, 0
    ),
    "pooled, then rounded": (
        lambda x: _pooled(x * 1).astype(jnp.bfloat16) * 2, (SPECIAL,), EXACT, 0
    ),
    "pooled and concatenated, then rounded": (
        lambda x: (lambda y: (
            _pooled(y).astype(jnp.bfloat16), jnp.concatenate([y, -y]).astype(jnp.bfloat16)
        ))(x * 2),
        (SPECIAL,), EXACT, 0,
    ),
    "a step of a U-Net": (
        lambda x, s, u, b, w: _convolved(_beside(jax.nn.relu(s), _enlarged(x, u) + b), w),
        (IMAGE, SKIPPED, UP, BIAS, DOWN), SUM, 2,
    ),
    "a bias after a transposed convolution that is cut": (
        lambda x, u, b: jax.nn.relu(_enlarged(x, u, "SAME") * b - b),
        (IMAGE, _numbers(3, 3, 16, 16), BIAS), SUM, None,
    ),
    "what differs from pixel to pixel after one": (
        lambda x, s, u: _enlarged(x, u) + s, (IMAGE, SKIPPED, UP), SUM, None,
    ),
}  # fmt: skip
"""Functions, arguments, tolerance, and how many copies within HBM are as large as an operand."""


@pytest.mark.parametrize("name", CASES)
def test_parts(name: str) -> None:
    function, arguments, tolerance, copies = CASES[name]
    program = check(function, *arguments, tolerance=tolerance)
    assert verify(program) == ()
    assert host_operations(program) == []
    if copies is not None:
        least = min(argument.size for argument in arguments if np.ndim(argument) > 1) // 2
        assert _copies(program, least) <= copies


def test_a_bias_is_added_as_a_transposed_convolution_is_written() -> None:
    function, arguments, _, _ = CASES["a step of a U-Net"]
    program, _ = lowered_function(function, *arguments)
    assert any({"convolution", "add"} <= {*kernel.operations} for _, kernel in kernels(program))


def _copies(program: Program, least: int) -> int:
    """Copies from HBM to HBM of so many elements."""
    return sum(
        isinstance(i, DmaCopy)
        and i.src.buffer.memory is i.dst.buffer.memory is Memory.HBM
        and i.src.elements >= least
        for _, i in instructions(program)
    )
