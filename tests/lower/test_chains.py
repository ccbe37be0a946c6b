"""Chains of element-wise operations and row reductions, control flow and moves, on engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from neuronjax.lower.memory.allocate import allocate
from neuronjax.program.operand import Kind
from neuronjax.program.vector_engine import TensorCopy
from neuronjax.program.verify import verify
from neuronjax.program.walk import instructions
from tests.lower.differential import EXACT, FUNCTION, SUM, Tolerance, check, lowered, sent

RNG = np.random.default_rng(0)
INTEGERS = RNG.integers(-10_000, 10_000, (13, 40), np.int32)
POSITIVE = RNG.integers(1, 10_000, (13, 40), np.int32)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


class Case(NamedTuple):
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    tolerance: Tolerance = EXACT


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def residual_norm(x: jax.Array, y: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    x = x + y
    centered = x - x.mean(-1, keepdims=True)
    return centered * lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * scale + bias


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    chosen = jax.nn.log_softmax(logits) * jax.nn.one_hot(labels, logits.shape[-1])
    return -chosen.sum(-1).mean()


def recurrence(x: jax.Array, w: jax.Array) -> Any:
    def step(state: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jnp.tanh(state @ w + row)
        return state, state.sum()

    return lax.scan(step, x[0], x)


def reduced_before(x: jax.Array, start: jax.Array) -> Any:
    """A reduction of dimensions of size 1, and one of others after it."""
    rows = x.sum((0, 1))
    return rows, (rows * rows).sum() + start


CASES = {
    "one element": Case(lambda x: x + 1, (floats(),)),
    "nothing divides": Case(lambda x, y: x + y * 2, (floats(70_001), floats(70_001))),
    "transposed operand": Case(lambda x, y: x + y.T, (floats(30, 200), floats(200, 30))),
    "reversed and strided": Case(lambda x: x[::-1, ::3] * 2, (floats(9, 17),)),
    "broadcasts": Case(lambda x, y, z: x + y - z, (floats(3, 1, 40), floats(1, 50, 1), floats(40))),
    "bfloat16": Case(
        lambda x, y: x.astype(jnp.bfloat16) * y.astype(jnp.bfloat16) + 1,
        (floats(30, 200), floats(30, 200)),
    ),
    "integers": Case(
        lambda x, y: (x * y + 3, x // y, x % y, x << 2, x > y, -x, abs(x)), (INTEGERS, POSITIVE)
    ),
    "integers beyond what floats hold": Case(
        lambda x, y: (jnp.where(x > 5, y, x), jnp.where(x > 5, np.int32(-195_148_322), y)),
        (INTEGERS, np.int32(539_757_448)),
    ),
    "functions": Case(
        lambda x: (jnp.exp(x), jnp.tanh(x), jnp.sin(x), jnp.log1p(abs(x)), lax.logistic(x)),
        (floats(20, 30),),
        FUNCTION,
    ),
    "roundings": Case(lambda x: (jnp.floor(x), jnp.round(x), jnp.sign(x)), (9 * floats(8, 99),)),
    "selections": Case(
        lambda x, y: (jnp.where(x > y, x, 0), jnp.clip(x, -1, 1)), (floats(5, 6),) * 2
    ),
    "softmax": Case(lambda x: jax.nn.softmax(x), (floats(200, 100),), SUM),
    "RMS norm": Case(rms_norm, (floats(3, 50, 64), floats(64)), SUM),
    "RMS norm of many short rows": Case(rms_norm, (floats(700, 120), floats(120)), SUM),
    "norm of many short rows": Case(
        residual_norm, (floats(600, 96), floats(600, 96), floats(96), floats(96)), SUM
    ),
    "cross entropy": Case(cross_entropy, (floats(32, 50), np.arange(32, dtype=np.int32)), SUM),
    "long rows": Case(lambda x: jax.nn.logsumexp(x, -1), (floats(3, 40_000),), SUM),
    "long rows of which a sum waits for another": Case(
        residual_norm, (floats(3, 6000), floats(3, 6000), floats(6000), floats(6000)), SUM
    ),
    "long rows of which a sum waits for a maximum": Case(
        lambda x, y, z, w: jax.nn.softmax(x * y + z * w), (floats(3, 6000),) * 4, SUM
    ),
    "reductions": Case(lambda x: (x.sum(0), x.max(), x.min(1)), (floats(200, 300),), SUM),
    "reduced before": Case(reduced_before, (floats(1, 1, 192), np.float32(2)), SUM),
    "sums of squares": Case(
        lambda x, y: jnp.sqrt((x * x).sum() + (y * y).sum()), (floats(192), floats(32, 48)), SUM
    ),
    "random bits": Case(lambda: jax.random.bits(jax.random.key(1), (300,)), ()),
    "concatenation": Case(
        lambda x, y: jnp.concatenate([x, y])[::2, 3:], (floats(5, 9), floats(6, 9))
    ),
    "padding": Case(lambda x: lax.pad(x, 0.5, [(1, 2, 1), (-1, 3, 0)]), (floats(5, 9),)),
    "dynamic slice": Case(
        lambda x, i, j: lax.dynamic_slice(x, (i, j), (2, 3)),
        (floats(10, 9), np.int32(4), np.int32(20)),
    ),
    "dynamic slice of a later argument": Case(
        lambda i, x: lax.dynamic_slice(x, (i, 2), (2, 3)), (np.int32(4), floats(10, 9))
    ),
    "dynamic slice of reversed columns": Case(
        lambda x, i, j: lax.dynamic_slice(x[:, ::-1], (i, j), (2, 3)),
        (floats(10, 9), np.int32(4), np.int32(-2)),
    ),
    "dynamic update": Case(
        lambda x, y, i: lax.dynamic_update_slice(x, y, (i, 0)),
        (floats(10, 9), floats(3, 9), np.int32(-4)),
    ),
    "scan": Case(recurrence, (floats(7, 5, 16), 0.2 * floats(16, 16)), SUM),
    "while": Case(
        lambda x: lax.while_loop(lambda c: c[0] < 99, lambda c: (c[0] * 2, c[1] + 1), (x, 0)),
        (np.float32(1.5),),
    ),
    "cond": Case(
        lambda p, x: lax.cond(p > 0, lambda x: x + 1, lambda x: x * 2, x), (np.int32(1), floats(5))
    ),
    "switch": Case(
        lambda p, x: lax.switch(p, [lambda x: x + 1, lambda x: x * 2, lambda x: x], x),
        (np.int32(7), floats(5)),
    ),
}


def test_great_rows_fit_while_the_next_ones_come() -> None:
    program = check(lambda x: jnp.max(x, 1), floats(260, 30_000))
    assert verify(allocate(program)) == ()


@pytest.mark.parametrize("chip", ["trainium1", "trainium2", "trainium3"])
@pytest.mark.parametrize("length", [6144, 9216, 12_288, 12_800])
def test_long_rows_fit_beside_those_that_are_stored(chip: str, length: int) -> None:
    x, scale, bias = (np.ones(shape, np.float32) for shape in ((260, length), length, length))
    for function, arguments in (
        (jax.nn.softmax, (x,)),
        (residual_norm, (x, x, scale, bias)),
        (lambda x, y: jax.vjp(jax.nn.softmax, x)[1](y)[0], (x, x)),
    ):
        code = sent(jax.jit(function).trace(*arguments))
        assert verify(allocate(lowered(code, chip=chip))) == ()


def test_a_bias_that_is_converted_cuts_no_chain() -> None:
    def layer(x: Any, w: Any, bias: Any, scale: Any) -> Any:
        y = x @ w + bias.astype(jnp.float32)
        return jnp.tanh(y) * scale.astype(jnp.float32)

    narrow = [floats(40).astype(jnp.bfloat16) for _ in range(2)]
    program = check(layer, floats(30, 20), floats(20, 40), *narrow, tolerance=SUM)
    wide = [b for b in program.buffers if b.kind is Kind.SCRATCH and b.elements >= 30 * 40]
    assert wide == []


@pytest.mark.parametrize("name", CASES)
def test_engines_compute_what_the_host_computes(name: str) -> None:
    case = CASES[name]
    program = check(case.function, *case.arguments, tolerance=case.tolerance)
    assert verify(program) == ()


WORDS = RNG.integers(0, 40, 13, np.int32)
TRUTHS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "words": (lambda x, i: jax.nn.one_hot(i, 40) * x, (floats(13, 40), WORDS)),
    "great words": (
        lambda i, j: (i == j).astype(jnp.float32) + 1,
        (WORDS + (1 << 29), WORDS + (1 << 29) + np.arange(13, dtype=np.int32) % 2),
    ),
    "numbers, NaN among them": (
        lambda x, y: (x <= y).astype(jnp.float32) - y,
        (np.where(floats(13, 40) > 1, np.float32(np.nan), 0), floats(13, 40)),
    ),
    "short numbers": (lambda i: (i > 2).astype(jnp.bfloat16) * 3, (INTEGERS.astype(np.int16),)),
    "results": (lambda x: (x > 0.3).astype(jnp.float16), (floats(13, 40),)),
}


@pytest.mark.parametrize("name", TRUTHS)
def test_comparisons_write_numbers(name: str) -> None:
    """What is compared and converted takes one instruction."""
    function, arguments = TRUTHS[name]
    program = check(function, *arguments)
    assert not any(isinstance(each, TensorCopy) for _, each in instructions(program))


def test_a_mask_of_a_product_finds_its_indices() -> None:
    """Indices are made before the product whose kernel takes the mask along."""
    left, right = floats(40, 24), floats(24, 40)
    check(lambda a, b: jnp.tril(a @ b), left, right, tolerance=SUM)
