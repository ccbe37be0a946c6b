"""Multiplications and additions of modules, against sums done by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.interpreters import mlir

from neuronjax.planning.flops import model_flops


def ones(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def convolution(x: jax.Array, kernel: jax.Array, groups: int = 1) -> jax.Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=groups
    )


square = jax.jit(lambda x: x @ x)


def nested(x: jax.Array) -> jax.Array:
    def inner(c: jax.Array, _: Any) -> tuple[jax.Array, None]:
        return c @ c, None

    def outer(c: jax.Array, _: Any) -> tuple[jax.Array, None]:
        return jax.lax.scan(inner, c, length=3)[0] @ c, None

    return jax.lax.scan(outer, x, length=5)[0]


CASES: list[tuple[str, Callable[..., Any], tuple[Any, ...], int]] = [
    ("product", lambda x, y: x @ y, (ones(3, 5), ones(5, 7)), 2 * 3 * 5 * 7),
    ("vector", lambda x, y: x @ y, (ones(3, 5), ones(5)), 2 * 3 * 5),
    ("batched", lambda x, y: jnp.einsum("bij,bkj->bik", x, y), (ones(2, 3, 5), ones(2, 7, 5)),
     2 * 2 * 3 * 5 * 7),
    ("two axes", lambda x, y: jnp.tensordot(x, y, 2), (ones(3, 4, 5), ones(4, 5, 6)),
     2 * 3 * 20 * 6),
    ("convolution", convolution, (ones(2, 8, 8, 3), ones(5, 5, 3, 16)),
     2 * 2 * 64 * 16 * 75),
    ("grouped", lambda x, k: convolution(x, k, 4), (ones(2, 8, 8, 8), ones(3, 3, 2, 12)),
     2 * 2 * 64 * 12 * 18),
    ("nested loops", nested, (ones(4, 4),), 5 * (3 + 1) * 2 * 4**3),
    ("branches", lambda i, x: jax.lax.cond(i, lambda: x @ x @ x, lambda: x @ x),
     (jax.ShapeDtypeStruct((), jnp.bool_), ones(4, 4)), 2 * 2 * 4**3),
    ("function called twice", lambda x: square(square(x)), (ones(4, 4),), 2 * 2 * 4**3),
    ("no products", lambda x: jnp.tanh(x) + 1, (ones(9),), 0),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "arguments", "flops"), [case[1:] for case in CASES],
                         ids=[case[0] for case in CASES])  # fmt: skip
def test_flops(fn: Callable[..., Any], arguments: tuple[Any, ...], flops: int) -> None:
    module = jax.jit(fn).lower(*arguments).compiler_ir("stablehlo")
    assert model_flops(mlir.module_to_bytecode(module)) == flops


def test_trips_that_depend_on_data() -> None:
    def until(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda c: c[0, 0] < 9, lambda c: c @ c, x)

    code = mlir.module_to_bytecode(jax.jit(until).lower(ones(4, 4)).compiler_ir("stablehlo"))
    assert model_flops(code, unknown_trips=6) == 6 * 2 * 4**3
