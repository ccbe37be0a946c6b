"""Pairs of products whose results the same operations take, against XLA:CPU: one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.program.dma import DmaCopy
from neuronjax.program.program import Program
from neuronjax.program.walk import instructions, kernels
from tests.lower.differential import Tolerance
from tests.lower.test_matmul import drawn, held

CLOSE = Tolerance(ulps=8, relative=2e-5)
ROUNDED = Tolerance(ulps=2, relative=1e-2)


def gated(x: Any, gate: Any, up: Any) -> Any:
    """A feed-forward layer's first half."""
    return jax.nn.silu(x @ gate) * (x @ up)


def gradient(q: Any, k: Any, largest: Any, d: Any, v: Any, row: Any, mask: Any) -> Any:
    """Weights of attention made again, and the gradients of their scores: [b, q, k] each."""
    scores = jnp.where(mask, jnp.einsum("bqh,bkh->bqk", q, k) * 0.25, np.float32(-1e30))
    weights = jnp.exp(scores - largest[..., None])
    of_weights = jnp.einsum("bqh,bkh->bqk", d, v) + row[..., None]
    return weights, jnp.where(mask, of_weights * weights, np.float32(0)) * 0.25


def _masked(queries: int, keys: int) -> np.ndarray:
    return np.arange(keys) <= np.arange(queries)[:, None]


def _of_attention(queries: int, keys: int, width: int) -> list[np.ndarray]:
    q, d = (drawn((2, queries, width), seed=n) for n in (0, 1))
    k, v = (drawn((2, keys, width), seed=n) for n in (2, 3))
    largest = np.abs(drawn((2, queries), seed=4)) + 4
    return [q, k, largest, d, v, drawn((2, queries), seed=5), _masked(queries, keys)]


def _matrices(*shapes: tuple[int, ...], dtype: str = "float32") -> list[np.ndarray]:
    return [drawn(shape, dtype, seed=n) for n, shape in enumerate(shapes)]


CASES: dict[str, tuple[Callable[..., Any], list[np.ndarray]]] = {
    "gate": (gated, _matrices((530, 70), (70, 130), (70, 130))),
    "several tiles of columns": (gated, _matrices((520, 40), (40, 2600), (40, 2600))),
    "deep": (gated, _matrices((514, 300), (300, 140), (300, 140))),
    "of two inputs": (
        lambda x, a, y, b, c: (x @ a + c) * jnp.tanh(y @ b),
        _matrices((530, 70), (70, 130), (530, 40), (40, 130), (130,)),
    ),
    "the older product is wanted too": (
        lambda x, a, b: ((gate := x @ a), jnp.sin(gate) - x @ b),
        _matrices((530, 70), (70, 130), (70, 130)),
    ),
    "attention's gradients": (gradient, _of_attention(520, 140, 16)),
    "in many tiles": (gradient, _of_attention(520, 2200, 16)),
}


def is_paired(program: Program) -> bool:
    return any(kernel.name.startswith("pair") for _, kernel in kernels(program))


@pytest.mark.parametrize("name", CASES)
def test_pairs(name: str) -> None:
    function, arrays = CASES[name]
    assert is_paired(held(function, *arrays, tolerance=CLOSE))


@pytest.mark.parametrize("name", ["gate", "of two inputs"])
def test_pairs_in_two_bytes(name: str) -> None:
    function, arrays = CASES[name]
    narrow = [array.astype(jnp.bfloat16) for array in arrays]
    assert is_paired(held(function, *narrow, tolerance=ROUNDED))


APART: dict[str, tuple[Callable[..., Any], list[np.ndarray]]] = {
    "few rows": (gated, _matrices((100, 70), (70, 130), (70, 130))),
    "only the left operand could stay": (
        lambda a, x, b, y: (a @ x) * jnp.exp(b @ y),
        _matrices((130, 20), (20, 530), (130, 20), (20, 530)),
    ),
    "one after the other": (
        lambda x, a, b: (x @ a) * ((x @ a) @ b),
        _matrices((530, 130), (130, 130), (130, 130)),
    ),
    "something between needs the older one": (
        lambda x, a, b: (y := x @ a) + (x + jnp.sum(y @ b, axis=1, keepdims=True)) @ b,
        _matrices((530, 130), (130, 130), (130, 130)),
    ),
    "seen in another order": (
        lambda x, a, b: (x @ a) * (b @ x.T).T,
        _matrices((530, 130), (130, 520), (520, 130)),
    ),
}


@pytest.mark.parametrize("name", APART)
def test_what_is_no_pair(name: str) -> None:
    function, arrays = APART[name]
    assert not is_paired(held(function, *arrays, tolerance=CLOSE))


def test_what_reads_the_older_product_comes_after() -> None:
    def function(x: Any, a: Any, b: Any, c: Any) -> Any:
        gate = jnp.exp(x @ a)
        return gate.T @ c, gate * (x @ b)

    arrays = _matrices((530, 70), (70, 130), (70, 130), (530, 20))
    assert is_paired(held(function, *arrays, tolerance=CLOSE))


def test_a_pair_writes_rows_for_a_product() -> None:
    """Products could write its operand in their order; a pair would write single elements."""

    def feed_forward(x: Any, gate: Any, up: Any, down: Any) -> Any:
        return gated(x, gate, up) @ down

    program = held(feed_forward, *_matrices((530, 70), (70, 130), (70, 130), (130, 40)))
    assert is_paired(program)
    copies = [each for _, each in instructions(program) if isinstance(each, DmaCopy)]
    stores = [each.dst for each in copies if not each.dst.buffer.on_chip]
    assert stores
    assert all(access.dims[-1].stride == 1 for access in stores)
