"""What engines do by themselves, against XLA:CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.program.walk import count_instructions
from tests.lower.differential import Tolerance
from tests.lower.test_matmul import drawn, held

CLOSE = Tolerance(ulps=8, relative=1e-5)
BF16 = jnp.bfloat16


def widened(x: jax.Array, y: jax.Array) -> jax.Array:
    return x.astype(BF16).astype(jnp.float32) @ y.astype(BF16).astype(jnp.float32)


def pooled(x: jax.Array) -> jax.Array:
    return jax.lax.reduce_window(
        x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0))
    )


CASES: list[tuple[str, Callable[..., Any], tuple[tuple[int, ...], ...], str]] = [
    ("sum of squares", lambda x: x / jnp.sqrt((x * x).mean()), ((1, 4096),), "nc_matmul"),
    ("gelu", lambda x: jax.nn.gelu(x, approximate=False), ((64, 48),), "activation"),
    ("gelu of narrow values", lambda x: jax.nn.gelu(x.astype(jnp.bfloat16), approximate=False),
     ((64, 48),), "activation"),
    ("logistic", lambda x: 1 / (1 + jnp.exp(-x)), ((64, 48),), "activation"),
    ("pooling", pooled, ((1, 14, 14, 32),), "tensor_tensor"),
    ("rms norm", lambda x: x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True)),
     ((200, 300),), "activation_reduce"),
    ("sum of rows", lambda x: (x * 2).sum((0, 1)), ((3, 100, 256),), "nc_matmul"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_against_the_host(case: Any) -> None:
    _, function, shapes, mnemonic = case
    arguments = [drawn(shape) for shape in shapes]
    program = held(function, *arguments, tolerance=CLOSE)
    assert count_instructions(program)[mnemonic] > 0


def test_products_of_widened_numbers_read_narrow_ones() -> None:
    x, y = drawn((64, 128)), drawn((128, 96))
    program = held(widened, x, y, tolerance=CLOSE)
    assert count_instructions(program)["nc_matmul"] == 1


def test_nan_needs_no_choice() -> None:
    x = np.array([1.0, np.nan, -np.inf, 0.0], np.float32)
    program = held(lambda x: jnp.where(x == x, x, jnp.nan) + 1, x)
    counts = count_instructions(program)
    assert not {"tensor_copy_predicated", "select_reduce"} & counts.keys()
