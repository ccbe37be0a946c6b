"""Attention of which a mask excludes keys for any arguments: their scores are not made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

import neuronjax
from neuronjax.program.instruction import Instruction
from neuronjax.program.program import Program
from neuronjax.program.tensor_engine import Matmul
from tests.lower.test_attention import CLOSE, attention, is_in_one_kernel
from tests.lower.test_matmul import drawn, held
from tests.program.counts import count_instructions

Function = Callable[[Any, Any, Any], Any]


def indexed(rule: Callable[[Any, Any], Any]) -> Function:
    """Attention with a mask of the indices of queries and keys."""

    def function(q: Any, k: Any, v: Any) -> Any:
        i, j = jnp.arange(q.shape[1])[:, None], jnp.arange(k.shape[1])
        return attention(q, k, v, mask=rule(i, j))

    return function


def library(**options: Any) -> Function:
    return lambda q, k, v: jax.nn.dot_product_attention(q, k, v, **options)


def flax_causal(q: Any, k: Any, v: Any) -> Any:
    """The mask is of floating-point numbers, made of positions."""
    mask = nn.make_causal_mask(jnp.ones(q.shape[:2]))
    return nn.dot_product_attention(q, k, v, mask=mask)


def as_bias(q: Any, k: Any, v: Any) -> Any:
    i, j = jnp.arange(q.shape[1])[:, None], jnp.arange(k.shape[1])
    return attention(q, k, v, bias=jnp.where(i >= j, 0.0, -1e9))


def of_weights(q: Any, k: Any, v: Any) -> Any:
    """The softmax is told of the mask."""
    i, j = jnp.arange(q.shape[1])[:, None], jnp.arange(k.shape[1])
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    weights = jax.nn.softmax(scores, where=i >= j)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def square(positions: int, heads: int = 1) -> tuple[tuple[int, ...], ...]:
    return ((1, positions, heads, 8),) * 3


def oblong(queries: int, keys: int) -> tuple[tuple[int, ...], ...]:
    return (1, queries, 1, 8), (1, keys, 1, 8), (1, keys, 1, 8)


CASES: list[tuple[str, Function, tuple[tuple[int, ...], ...], float]] = [
    ("causal", indexed(lambda i, j: i >= j), square(2048), 0.7),
    ("window", indexed(lambda i, j: (i >= j) & (i - j < 100)), square(1000, 2), 0.4),
    ("blocks", indexed(lambda i, j: i // 256 == j // 256), square(1024), 0.3),
    ("causal blocks", indexed(lambda i, j: (i // 256 == j // 256) & (i >= j)), square(1024), 0.3),
    ("not of the last", indexed(lambda i, j: j < i + 200), oblong(400, 2000), 0.5),
    ("long rows", indexed(lambda i, j: j <= i + 4864), oblong(256, 9000), 0.6),
    ("long, moving rows", indexed(lambda i, j: (j > i + 1000) & (j <= i + 5900)),
     oblong(640, 12000), 0.5),
    ("library, causal", library(is_causal=True), square(2048, 2), 0.7),
    ("library, both sides", library(local_window_size=(100, 60)), square(900, 2), 0.6),
    ("library, grouped", library(is_causal=True, local_window_size=(90, 0)),
     ((1, 900, 4, 8), (1, 900, 2, 8), (1, 900, 2, 8)), 0.5),
    ("Flax", flax_causal, square(2048), 0.7),
    ("bias", as_bias, square(2048), 0.7),
    ("softmax with a mask", of_weights, square(2048), 0.7),
]  # fmt: skip


def multiplied(program: Program) -> int:
    """Multiplications for scores, and of weights with values."""

    def elements(instruction: Instruction) -> str | None:
        if not isinstance(instruction, Matmul):
            return None
        columns, rows = instruction.moving.free_elements, instruction.moving.partitions
        return str(columns * rows * instruction.stationary.free_elements)

    counts = count_instructions(program, elements)
    return sum(int(key) * count for key, count in counts.items() if isinstance(key, str))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_excluded_keys_are_skipped(case: Any) -> None:
    _, function, shapes, most = case
    arrays = [drawn(shape, seed=n) for n, shape in enumerate(shapes)]
    program = held(function, *arrays, tolerance=CLOSE)
    whole = 2 * arrays[0].size * shapes[1][1]
    assert multiplied(program) <= most * whole


UNCUT: list[tuple[str, Callable[..., Any]]] = [
    ("a row without a key", indexed(lambda i, j: j > i)),
    ("rows without keys at the end", indexed(lambda i, j: (j >= i) & (j < i + 50) & (i < 1000))),
    ("a number that scores may reach", lambda q, k, v: attention(
        q, k, v, bias=jnp.where(jnp.arange(1024)[:, None] >= jnp.arange(1024), 0.0, -9.0))),
]  # fmt: skip


@pytest.mark.parametrize("case", UNCUT, ids=lambda case: case[0])
def test_rows_that_need_all_keys_have_them(case: Any) -> None:
    """Where nothing is visible, weights are equal: those of all keys count."""
    arrays = [drawn(shape, seed=n) for n, shape in enumerate(square(1024))]
    held(case[1], *arrays, tolerance=CLOSE)


def test_what_arguments_exclude_is_computed() -> None:
    """A mask that is an argument, together with one that is not."""

    def function(q: Any, k: Any, v: Any, padding: Any) -> Any:
        i, j = jnp.arange(q.shape[1])[:, None], jnp.arange(k.shape[1])
        return attention(q, k, v, mask=(i >= j) & padding)

    arrays = [drawn(shape, seed=n) for n, shape in enumerate(square(1024))]
    held(function, *arrays, jnp.arange(1024) > 300, tolerance=CLOSE)


SPARSE: list[tuple[str, Function]] = [
    ("window", indexed(lambda i, j: (i >= j) & (i - j < 60))),
    ("blocks", indexed(lambda i, j: i // 128 == j // 128)),
    ("library", library(is_causal=True, local_window_size=(60, 0))),
]


@pytest.mark.parametrize("case", SPARSE, ids=lambda case: case[0])
def test_masks_that_hide_most_are_not_made_as_a_whole(case: Any) -> None:
    """No value of the size of the mask lies in HBM, for several heads either."""
    arrays = [drawn(shape, seed=n) for n, shape in enumerate(square(1536, 2))]
    program = held(case[1], *arrays, tolerance=CLOSE)
    assert is_in_one_kernel(program, 1536**2)


@pytest.mark.slow
def test_windows_take_the_longer_the_wider_they_are() -> None:
    shape = jax.ShapeDtypeStruct((1, 4096, 4, 64), jnp.bfloat16)

    def time_ns(**options: Any) -> float:
        estimate = neuronjax.estimate(
            library(**options), shape, shape, shape, target="trn2.3xlarge"
        )
        return estimate.step_ns - estimate.launch_ns

    windows = [time_ns(is_causal=True, local_window_size=(size, 0)) for size in (127, 511, 1023)]
    assert windows == sorted(windows)
    assert windows[0] < 0.5 * time_ns()
    assert windows[-1] < time_ns(is_causal=True)


@pytest.mark.parametrize("name", ["normal", "bernoulli"])
def test_random_masks_are_judged_in_no_time(name: str) -> None:
    """Threefry reads the same values on more ways than could ever be followed."""

    def chosen(x: Any, key: Any) -> Any:
        drawn = getattr(jax.random, name)(jax.random.wrap_key_data(key), shape=x.shape)
        return jnp.where(drawn > 0, x, 0.0)

    key = jax.ShapeDtypeStruct((2,), "uint32")
    rows = jax.ShapeDtypeStruct((4096, 1024), "float32")
    assert neuronjax.estimate(chosen, rows, key, target="trn1.2xlarge").device_ns > 0
