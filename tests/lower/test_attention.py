"""Attention against XLA:CPU: one kernel, whose scores never reach HBM."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.program.operand import Kind
from neuronjax.program.program import Program
from neuronjax.program.vector_engine import TensorReduce
from neuronjax.program.walk import instructions, kernels
from tests.lower.differential import Tolerance
from tests.lower.test_matmul import drawn, held
from tests.program.counts import count_instructions

CLOSE = Tolerance(ulps=8, relative=2e-5)
ROUNDED = Tolerance(ulps=2, relative=1e-2)


def attention(q: Any, k: Any, v: Any, bias: Any = None, mask: Any = None) -> Any:
    """[b, t, h, d], as one writes it."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
    scores = scores / math.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9)
    weights = jax.nn.softmax(scores).astype(v.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def grouped(q: Any, k: Any, v: Any) -> Any:
    """[b, t, kv, g, d]: several queries for each key."""
    scores = jnp.einsum("btkgd,bskd->bkgts", q, k) * 0.25
    return jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(scores), v)


def capped(q: Any, k: Any, v: Any) -> Any:
    """With a cap of scores, and only the denominator at the end."""
    scores = jnp.tanh(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 30) * 30
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    return jnp.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v)


def causal(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


CASES: list[tuple[str, Callable[..., Any], tuple[tuple[int, ...], ...]]] = [
    ("plain", attention, ((2, 20, 3, 16),) * 3),
    ("remainders", attention, ((1, 130, 2, 16), (1, 257, 2, 16), (1, 257, 2, 24))),
    ("many keys", attention, ((1, 9, 1, 8), (1, 1100, 1, 8), (1, 1100, 1, 8))),
    ("rows longer than SBUF holds", attention, ((1, 140, 1, 8), (1, 4400, 1, 8), (1, 4400, 1, 16))),
    ("long rows and wide heads", attention, ((1, 130, 1, 512),) + ((1, 4300, 1, 512),) * 2),
    ("no room for rows", attention, ((1, 128, 1, 8), (1, 47000, 1, 8), (1, 47000, 1, 8))),
    ("long rows, denominator last", capped, ((1, 70, 1, 8), (1, 4400, 1, 8), (1, 4400, 1, 8))),
    ("one query", attention, ((2, 1, 2, 32), (2, 300, 2, 32), (2, 300, 2, 32))),
    ("wide heads", attention, ((1, 40, 1, 200), (1, 300, 1, 200), (1, 300, 1, 200))),
    ("bias", attention, ((2, 20, 3, 16), (2, 30, 3, 16), (2, 30, 3, 16), (1, 3, 20, 30))),
    ("windows", attention, ((14, 49, 3, 16),) * 3 + ((1, 3, 49, 49),)),
    ("windows, few heads at a time", attention, ((4, 49, 12, 8),) * 3 + ((1, 12, 49, 49),)),
    ("odd numbers of them", attention, ((5, 30, 7, 8), (5, 40, 7, 8), (5, 40, 7, 24))),
    ("more than 128 queries", attention, ((2, 130, 2, 8), (2, 60, 2, 8), (2, 60, 2, 8))),
    ("grouped", grouped, ((2, 20, 2, 3, 16), (2, 30, 2, 16), (2, 30, 2, 16))),
    ("capped", capped, ((1, 33, 2, 16),) * 3),
    ("causal", causal, ((2, 40, 4, 16),) * 3),
    ("causal and grouped", causal, ((2, 40, 4, 16), (2, 40, 2, 16), (2, 40, 2, 16))),
]  # fmt: skip


def is_in_one_kernel(program: Program, scores: int) -> bool:
    """Whether there is a kernel of attention and nothing as large as the scores in HBM."""
    names = [kernel.name for _, kernel in kernels(program)]
    scratch = [each.elements for each in program.buffers if each.kind is Kind.SCRATCH]
    return any("attention" in name for name in names) and max(scratch, default=0) < scores


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_attention(case: Any) -> None:
    _, function, shapes = case
    arrays = [drawn(shape, seed=n) for n, shape in enumerate(shapes)]
    program = held(function, *arrays, tolerance=CLOSE)
    q, k = shapes[:2]
    assert is_in_one_kernel(program, math.prod(q[:-1]) * k[1])


@pytest.mark.parametrize("heads", [1, 2], ids=["", "grouped"])
def test_causal_attention_over_long_rows(heads: int) -> None:
    """More keys than SBUF holds rows of, and a mask that varies along queries and keys."""
    shapes = ((1, 70, heads, 8), (1, 4400, 1, 8), (1, 4400, 1, 8))
    arrays = [drawn(shape, seed=n) for n, shape in enumerate(shapes)]
    program = held(causal, *arrays, tolerance=CLOSE)
    assert any("attention" in kernel.name for _, kernel in kernels(program))


@pytest.mark.parametrize("case", [CASES[1], CASES[6], CASES[8]], ids=lambda case: case[0])
def test_attention_in_two_bytes(case: Any) -> None:
    _, function, shapes = case
    arrays = [drawn(shape, "bfloat16", seed=n) for n, shape in enumerate(shapes)]
    program = held(function, *arrays, tolerance=ROUNDED)
    q, k = shapes[:2]
    assert is_in_one_kernel(program, math.prod(q[:-1]) * k[1])


def test_masked_attention() -> None:
    q, k, v = (drawn((2, 20, 3, 16), seed=n) for n in range(3))
    mask = np.random.default_rng(0).integers(0, 2, (2, 1, 20, 20)).astype(bool)
    program = held(lambda q, k, v, m: attention(q, k, v, mask=m), q, k, v, mask, tolerance=CLOSE)
    assert is_in_one_kernel(program, 2 * 3 * 20 * 20)


@pytest.mark.parametrize("keys", [49, 80], ids=["few keys", "more"])
def test_windows_of_which_each_has_a_mask(keys: int) -> None:
    """The mask varies along windows, the bias along heads: neither is loaded for every pair."""
    shapes = [(8, keys, 6, 16)] * 3 + [(1, 6, keys, keys)]
    q, k, v, bias = (drawn(shape, seed=n) for n, shape in enumerate(shapes))
    mask = np.random.default_rng(0).integers(0, 2, (8, 1, keys, keys)).astype(bool)
    program = held(attention, q, k, v, bias, mask, tolerance=CLOSE)
    assert is_in_one_kernel(program, 8 * 6 * keys * keys)
    assert count_instructions(program)["dma_copy"] < 8 * 6 * 4


def test_one_instruction_takes_the_scores_of_several_products() -> None:
    program = held(attention, *(drawn((8, 20, 4, 16), seed=n) for n in range(3)), tolerance=CLOSE)
    reductions = [each for _, each in instructions(program) if isinstance(each, TensorReduce)]
    assert min(each.data.free_elements for each in reductions) > 20


def test_projections_around_it() -> None:
    """What surrounds attention in a layer stays in order."""

    def layer(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
        q, k, v = (jnp.einsum("btd,dhe->bthe", x, w) for w in (wq, wk, wv))
        return x + jnp.einsum("bthe,hed->btd", attention(q, k, v), wo)

    shapes = [(2, 20, 48), *[(48, 3, 16)] * 3, (3, 16, 48)]
    arrays = [drawn(shape, seed=n) * 0.3 for n, shape in enumerate(shapes)]
    program = held(layer, *arrays, tolerance=CLOSE)
    assert any("attention" in kernel.name for _, kernel in kernels(program))


def test_weights_that_others_want_are_there() -> None:
    def both(q: Any, k: Any, v: Any) -> Any:
        weights = jax.nn.softmax(jnp.einsum("qd,kd->qk", q, k))
        return weights, weights @ v

    held(both, *(drawn((20, 16), seed=n) for n in range(3)), tolerance=CLOSE)


def test_values_that_depend_on_scores_wait() -> None:
    """The values come from the scores: the products cannot be one kernel."""

    def twisted(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("qd,kd->qk", q, k)
        return jax.nn.softmax(scores) @ (scores.T @ v)

    held(twisted, *(drawn((20, 16), seed=n) for n in range(3)), tolerance=CLOSE)


def test_gradients() -> None:
    def loss(q: Any, k: Any, v: Any) -> Any:
        return jnp.sum(attention(q, k, v) ** 2)

    arrays = [drawn((2, 20, 2, 16), seed=n) for n in range(3)]
    held(jax.grad(loss, (0, 1, 2)), *arrays, tolerance=Tolerance(ulps=8, relative=1e-4))
