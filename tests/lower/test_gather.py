"""`gather` on engines: the very elements that XLA:CPU gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from neuronjax.program.verify import verify
from tests.lower.differential import check


def table(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return (np.arange(np.prod(shape)) % 251).reshape(shape).astype(dtype)


def indices(limit: int, *shape: int, dtype: Any = np.int32) -> np.ndarray:
    return np.random.default_rng(0).integers(0, limit, shape).astype(dtype)


def general(
    sizes: tuple[int, ...],
    offset: tuple[int, ...],
    collapsed: tuple[int, ...],
    mapped: tuple[int, ...],
    batching: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
    mode: str = "clip",
) -> Callable[[Any, Any], Any]:
    numbers = lax.GatherDimensionNumbers(offset, collapsed, mapped, *batching)
    return lambda x, i: lax.gather(x, i, numbers, sizes, mode=mode)


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "rows": (lambda t, i: t[i], (table(50, 16), indices(50, 7))),
    "rows of many vectors": (lambda t, i: t[i], (table(300, 5), indices(300, 40, 130))),
    "rows, clamped": (
        lambda t, i: jnp.take(t, i, axis=0, mode="clip"),
        (table(50, 16), indices(200, 300) - 70),
    ),
    "rows, filled": (
        lambda t, i: jnp.take(t, i, axis=0, mode="fill"),
        (table(50, 16), indices(200, 300) - 70),
    ),
    "columns": (lambda t, i: jnp.take(t, i, axis=1), (table(50, 16), indices(16, 9, 3))),
    "of a transposed value": (lambda t, i: t.T[i], (table(50, 16), indices(16, 9))),
    "of a reversed value": (lambda t, i: t[::-1, ::2][i], (table(50, 16), indices(50, 9))),
    "along the last axis": (
        lambda t, i: jnp.take_along_axis(t, i, axis=1),
        (table(33, 20), indices(20, 33, 4)),
    ),
    "of what is computed": (
        lambda t, b, i: jnp.take_along_axis((t - b[:, None]) * 2, i, axis=1),
        (table(33, 200), table(33), indices(200, 33, 4)),
    ),
    "of what is computed, filled": (
        lambda t, b, i: jnp.take_along_axis(t.astype(jnp.float32) - b[:, None], i, axis=1),
        (table(33, 200, dtype=jnp.bfloat16), table(33), indices(300, 33, 2) - 50),
    ),
    "of several batches of what is computed": (
        lambda t, b, i: jnp.take_along_axis(jnp.maximum(t, b[:, None, None]), i, axis=2),
        (table(3, 5, 200), table(3), indices(200, 3, 5, 1)),
    ),
    "along the first axis": (
        lambda t, i: jnp.take_along_axis(t, i, axis=0),
        (table(33, 20), indices(33, 5, 20)),
    ),
    "two numbers": (lambda t, i, j: t[i, :, j], (table(9, 4, 7), indices(9, 150), indices(7, 150))),
    "one window": (
        lambda t, i: general((3, 4), (0, 1), (), (0, 1))(t, i),
        (table(9, 7), np.array([4, 2], np.int32)),
    ),
    "overlapping windows": (
        general((2, 3), (1, 2), (), (1, 0)),
        (table(9, 7), indices(9, 11, 2)),
    ),
    "offset dimension first": (general((3, 1), (0,), (1,), (1,)), (table(3, 7), indices(7, 5, 1))),
    "a few great windows": (lambda t, i: t[i], (table(6, 200, 100), indices(6, 3))),
    "windows in parts": (lambda t, i: t[i], (table(70, 9001), indices(70, 65))),
    "one element": (lambda t, i: t[i], (table(19), np.array(-3, np.int32))),
    "vmapped": (
        jax.vmap(lambda t, i: t[i], in_axes=(0, 1)),
        (table(4, 20, 3), indices(20, 50, 4)),
    ),
    "vmapped great windows": (
        jax.vmap(lambda t, i: lax.dynamic_slice(t, (i, 0), (30, 600))),
        (table(3, 70, 600), indices(50, 3)),
    ),
    "vmapped twice": (
        jax.vmap(jax.vmap(lambda t, i: lax.dynamic_slice(t, (i,), (3,)))),
        (table(4, 5, 20), indices(20, 4, 5)),
    ),
    "vmapped slices of two dimensions": (
        jax.vmap(lambda t, i: lax.dynamic_slice(t, i, (3, 2)), in_axes=(2, 0)),
        (table(8, 7, 140), indices(9, 140, 2)),
    ),
    "small table, windows first": (
        lambda t, i: t[i].transpose(2, 0, 1) + 1,
        (table(33, 12), indices(33, 37, 41)),
    ),
    "small table of one number": (lambda t, i: t[i], (table(700), indices(700, 1_501))),
    "small table, clamped": (
        lambda t, i: t.at[i].get(mode="clip"),
        (table(50, 3), indices(2**31, 1_100) - 2**30),
    ),
    "small table of two numbers": (
        lambda t, i, j: t[i, :, j],
        (table(9, 4, 7), indices(9, 1_200), indices(7, 1_200)),
    ),
    "small table, overlapping windows": (
        general((2, 3), (1, 2), (), (1, 0)),
        (table(9, 7), indices(9, 1_111, 2)),
    ),
    "small table of bytes": (
        lambda t, i: t[i],
        (table(50, 3) > 100, indices(50, 2_000, dtype=np.uint8)),
    ),
    "small table of float8": (
        lambda t, i: t[i],
        (table(50, 3, dtype=jnp.float8_e4m3fn), indices(50, 2_000)),
    ),
    "small table of halves": (
        lambda t, i: t[i].T,
        (table(50, 3, dtype=jnp.bfloat16), indices(50, 2_000)),
    ),
    "small table of columns": (
        lambda t, i: jnp.take(t, i, axis=1),
        (table(5, 40), indices(40, 1_900)),
    ),
    "small table of odd numbers": (
        lambda t, i: t[i].T * 1,
        (np.array([[np.nan, np.inf], [-0.0, 1e-45], [-np.inf, 0]], np.float32), indices(3, 1_100)),
    ),
    "bool": (lambda t, i: t[i], (table(50, 3) > 100, indices(50, 7))),
    "bfloat16": (lambda t, i: t[i], (table(50, 3, dtype=jnp.bfloat16), indices(50, 7))),
    "float8": (lambda t, i: t[i], (table(50, 3, dtype=jnp.float8_e4m3fn), indices(50, 7))),
    "int4": (lambda t, i: t[i], ((table(50, 3) % 8).astype(jnp.int4), indices(50, 7))),
    "complex": (
        lambda t, i: t[i],
        (table(50, 3) + 1j * table(50, 3).astype(np.complex64), indices(50, 7)),
    ),
    **{
        f"{np.dtype(dtype).name} indices": (
            general((1, 3), (1,), (0,), (0,)),
            (table(300, 3), indices(120, 130, 1, dtype=dtype)),
        )
        for dtype in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32)
    },
    "far outside": (
        general((1, 3), (1,), (0,), (0,)),
        (table(300, 3), np.array([[-(2**31)], [2**31 - 1], [299], [300], [-1]], np.int32)),
    ),
    "far outside, unsigned": (
        general((1, 3), (1,), (0,), (0,)),
        (table(300, 3), np.array([[2**31], [2**32 - 1], [299], [300], [5]], np.uint32)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_gather(name: str) -> None:
    function, arguments = CASES[name]
    assert verify(check(function, *arguments)) == ()
