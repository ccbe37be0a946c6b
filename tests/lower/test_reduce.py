"""Reductions that `tensor_reduce` does not do, against XLA:CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from neuronjax.program.verify import verify
from tests.lower.differential import EXACT, SUM, Tolerance, check

RNG = np.random.default_rng(0)
FLOATS = RNG.standard_normal((5, 7, 33)).astype(np.float32)
TIES = RNG.integers(0, 4, (6, 40)).astype(np.float32)
INTEGERS = RNG.integers(-(2**31), 2**31, (3, 50, 4), dtype=np.int64).astype(np.int32)
ROWS = (4 * RNG.standard_normal((3, 2, 16_411))).astype(np.float32)
LONG = RNG.integers(-100, 100, (40_000,)).astype(np.int32)
PARTED = (2 * np.random.default_rng(1).standard_normal(4 * 70_001)).astype(np.float32)


def _last(x: jax.Array) -> Any:
    """Associative, not commutative: the second of two."""
    return lax.reduce(x, np.int32(0), lambda a, b: b, (1,))


def _both(x: jax.Array) -> Any:
    """Two operands: least and greatest."""
    return lax.reduce(
        (x, x),
        (np.int32(9), np.int32(9)),
        lambda a, b: (jnp.minimum(a[0], b[0]), jnp.maximum(a[1], b[1])),
        (0, 2),
    )


def _nothing(x: jax.Array) -> Any:
    return lax.reduce(x[:, :0], np.int32(7), lax.add, (1,))


CASES: dict[str, tuple[Callable[..., Any], np.ndarray, Tolerance]] = {
    "argmax": (lambda x: jnp.argmax(x, 2), FLOATS, EXACT),
    "argmin first dimension": (lambda x: jnp.argmin(x, 0), FLOATS, EXACT),
    "argmax of ties": (lambda x: jnp.argmax(x, 1), TIES, EXACT),
    "argmax of all": (jnp.argmax, FLOATS, EXACT),
    "argmax of NaN": (
        lambda x: jnp.argmax(jnp.where(x > 1, jnp.nan, x), 1), FLOATS, EXACT,
    ),
    "wrapping sum": (lambda x: jnp.sum(x, 1), INTEGERS, EXACT),
    "wrapping product": (lambda x: jnp.prod(x, (0, 1)), INTEGERS, EXACT),
    "int64 sum": (lambda x: jnp.sum(x.astype(np.int8), 0, dtype=np.int8), INTEGERS, EXACT),
    "maximum of integers": (lambda x: jnp.max(x, (1, 2)), INTEGERS, EXACT),
    "exclusive or": (
        lambda x: lax.reduce(x, np.int32(5), lax.bitwise_xor, (0, 1)), INTEGERS, EXACT,
    ),
    "exclusive or of bool": (
        lambda x: lax.reduce(x > 0, False, lax.bitwise_xor, (0,)), INTEGERS, EXACT,
    ),
    "long": (jnp.sum, LONG, EXACT),
    "largest of many": (lambda x: jnp.max(x.astype(np.float32)[:39_936]), LONG, EXACT),
    "least of many": (lambda x: jnp.min(jnp.abs(x[:16_384]).reshape(4, 64, 64)), LONG, EXACT),
    "long rows": (lambda x: jnp.argmax(x.reshape(4, 10_000), 1), LONG, EXACT),
    "long prime": (lambda x: jnp.sum(x[:39_989]), LONG, EXACT),
    "few long rows": (lambda x: jnp.max(x.reshape(3, 13_328), 1), LONG[:39_984], EXACT),
    "few long rows of prime length": (lambda x: jnp.min(x, 2), ROWS, EXACT),
    "few rows over two dimensions": (lambda x: jnp.max(x - 1, (0, 2)), ROWS, EXACT),
    "softmax of few long rows": (lambda x: jax.nn.softmax(x, 2), ROWS, SUM),
    "losses over many words": (
        lambda x: jax.grad(lambda x: jax.nn.logsumexp(x.astype(jnp.float32), 1).sum())(
            x[:, 0].astype(jnp.bfloat16)
        ), ROWS, SUM,
    ),
    "norms of few long rows": (
        lambda x: (x - x.mean(2, keepdims=True)) * lax.rsqrt(x.var(2, keepdims=True) + 1e-5),
        ROWS, SUM,
    ),
    "initial value of few long rows": (
        lambda x: lax.reduce(x, x[0, 0, 0] + 40, lax.max, (2,)), ROWS, EXACT,
    ),
    "given initial value": (lambda x: lax.reduce(x[1:99] - 200, x[0], lax.max, (0,)), LONG, EXACT),
    "of nothing": (_nothing, INTEGERS, EXACT),
    "not commutative": (_last, INTEGERS, EXACT),
    "two operands": (_both, INTEGERS, EXACT),
    "size one": (lambda x: jnp.sum(x[:, :1], 1), FLOATS, EXACT),
    "size one of bool": (lambda x: jnp.all(x[:, :1] > 0, 1), FLOATS, EXACT),
    "logaddexp": (
        lambda x: lax.reduce(x, np.float32(-np.inf), jnp.logaddexp, (2,)), FLOATS, SUM,
    ),
    "odd parts": (lambda x: jnp.argmax(x.reshape(4, 70_001), 1), PARTED, EXACT),
    "ties in parts": (
        lambda x: jnp.argmax(jnp.floor(x).reshape(2, 2, 70_001), 2), PARTED, EXACT,
    ),
    "NaN in parts": (
        lambda x: jnp.argmin(jnp.where(x > 4, jnp.nan, x).reshape(4, 70_001), 1), PARTED, EXACT,
    ),
    "half": (lambda x: jnp.argmax(x.astype(jnp.bfloat16), 1), FLOATS, EXACT),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_reduce(name: str) -> None:
    function, argument, tolerance = CASES[name]
    program = check(function, argument, tolerance=tolerance)
    assert verify(program) == ()
