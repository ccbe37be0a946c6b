"""Pooling, its gradients and running sums, against XLA:CPU."""

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
IMAGES = RNG.standard_normal((2, 9, 11, 3)).astype(np.float32)
TIES = RNG.integers(0, 3, (2, 8, 8, 3)).astype(np.float32)
VOLUME = RNG.integers(-9, 9, (2, 5, 6, 7)).astype(np.float32)
INTEGERS = RNG.integers(-(2**31), 2**31, (6, 40), dtype=np.int64).astype(np.int32)
CHANNELS = RNG.integers(0, 9, (4, 17, 16, 64)).astype(np.float32)
CHANNELS[0, :4, :4] = [np.nan, -0.0, 0.0, np.inf] * 16
LONG = RNG.standard_normal((3, 9000)).astype(np.float32)
WIDE = RNG.standard_normal((1, 200, 300, 1)).astype(np.float32)


def _pool(op: Any, init: Any, padding: Any = "SAME", **more: Any) -> Callable[..., Any]:
    settings = {"window_dimensions": (1, 3, 3, 1), "window_strides": (1, 2, 2, 1), **more}
    return lambda x: lax.reduce_window(
        x, np.asarray(init, x.dtype), op, padding=padding, **settings
    )


def _gradient(padding: str, window: int, stride: int) -> Callable[..., Any]:
    def loss(x: jax.Array) -> Any:
        pooled = lax.reduce_window(
            x, -np.inf, lax.max, (1, window, window, 1), (1, stride, stride, 1), padding
        )
        return jnp.sum(pooled * jnp.cos(jnp.arange(pooled.size)).reshape(pooled.shape))

    return jax.grad(loss)


def _running(op: Any, init: Any, axis: int, reverse: bool = False) -> Callable[..., Any]:
    def run(x: jax.Array) -> Any:
        size, rank = x.shape[axis], x.ndim
        window = tuple(size if dim == axis else 1 for dim in range(rank))
        ends = (0, size - 1) if reverse else (size - 1, 0)
        padding = [ends if dim == axis else (0, 0) for dim in range(rank)]
        return lax.reduce_window(x, np.asarray(init, x.dtype), op, window, (1,) * rank, padding)

    return run


def _pairs(x: jax.Array) -> Any:
    """The greatest of each window, and where it is."""
    where = lax.broadcasted_iota(np.int32, x.shape, 1)

    def best(a: Any, b: Any) -> Any:
        first = a[0] >= b[0]
        return jnp.where(first, a[0], b[0]), jnp.where(first, a[1], b[1])

    return lax.reduce_window(
        (x, where), (np.float32(-np.inf), np.int32(0)), best, (1, 3, 2, 1), (1, 2, 2, 1), "VALID"
    )


CASES: dict[str, tuple[Callable[..., Any], np.ndarray, Tolerance]] = {
    "greatest of large windows": (
        _pool(lax.max, -np.inf, window_dimensions=(1, 5, 4, 1)), CHANNELS, EXACT,
    ),
    "sums of large windows": (
        _pool(lax.add, 0.0, window_dimensions=(1, 7, 5, 1)), CHANNELS[1:], EXACT,
    ),
    "greatest": (_pool(lax.max, -np.inf), IMAGES, EXACT),
    "least": (_pool(lax.min, np.inf, "VALID"), IMAGES, EXACT),
    "sum": (_pool(lax.add, 0), IMAGES, SUM),
    "product": (_pool(lax.mul, 1), IMAGES, SUM),
    "half": (lambda x: _pool(lax.max, -np.inf)(x.astype(jnp.bfloat16)), IMAGES, EXACT),
    "integers": (lambda x: _pool(lax.add, 0)(x.astype(np.int32)), TIES, EXACT),
    "dilated": (_pool(lax.max, -np.inf, window_dilation=(1, 2, 1, 1)), IMAGES, EXACT),
    "base dilated": (_pool(lax.max, -np.inf, base_dilation=(1, 2, 3, 1)), IMAGES, EXACT),
    "given initial value": (
        lambda x: lax.reduce_window(
            x, x[0, 0, 0, 0] - 9, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID",
        ), IMAGES, EXACT,
    ),
    "windows of one element": (
        _pool(lax.min, 0, window_dimensions=(1, 1, 1, 1), window_strides=(1, 1, 1, 1)),
        IMAGES, EXACT,
    ),
    "three dimensions": (
        _pool(lax.add, 0, window_dimensions=(1, 2, 3, 2), window_strides=(1, 1, 2, 2)),
        VOLUME, SUM,
    ),
    "wide": (_pool(lax.max, -np.inf), WIDE, EXACT),
    "two operands": (_pairs, TIES, EXACT),
    "gradient": (_gradient("VALID", 2, 2), IMAGES, SUM),
    "gradient of ties": (_gradient("SAME", 3, 2), TIES, SUM),
    "gradient of overlaps": (_gradient("SAME", 3, 1), IMAGES, SUM),
    "gradient of many channels": (_gradient("SAME", 3, 2), CHANNELS, SUM),
    "gradient of channels without padding": (_gradient("VALID", 2, 2), CHANNELS, SUM),
    "running sum": (_running(lax.add, 0, 1), LONG, SUM),
    "running sum backwards": (_running(lax.add, 0, 1, reverse=True), IMAGES, SUM),
    "running maximum": (_running(lax.max, -np.inf, 0), IMAGES, EXACT),
    "running minimum of half": (
        lambda x: _running(lax.min, np.inf, 1)(x.astype(jnp.bfloat16)), IMAGES, EXACT,
    ),
    "running sums of channels": (_running(lax.add, 0, 1), CHANNELS[:, 5:], SUM),
    "running maximum of channels backwards": (
        _running(lax.max, -np.inf, 1, reverse=True), CHANNELS, EXACT,
    ),
    "running sums of columns": (_running(lax.add, 0, 0), LONG[:, :8_992].reshape(281, 96), SUM),
    "running minimum of half columns": (
        lambda x: _running(lax.min, np.inf, 1)(x.astype(jnp.bfloat16)), CHANNELS, EXACT,
    ),
    "running integers": (_running(lax.add, 0, 1), INTEGERS, EXACT),
    "running integers backwards": (_running(lax.mul, 1, 0, reverse=True), INTEGERS, EXACT),
    "running logarithms": (_running(jnp.logaddexp, -np.inf, 1), IMAGES, SUM),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_windows(name: str) -> None:
    function, argument, tolerance = CASES[name]
    program = check(function, argument, tolerance=tolerance)
    assert verify(program) == ()
