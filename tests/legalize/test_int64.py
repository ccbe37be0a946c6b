"""Who is told that 64-bit integers are computed in 32 bits."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from neuronjax.errors import shown_line
from neuronjax.hlo import module as hlo
from neuronjax.hlo.calls import terminator
from neuronjax.legalize.policy import Policy
from neuronjax.legalize.rules.rule import Program
from tests.legalize.finding import bytecode, found_in
from tests.legalize.programs import Case

NUMBERS = np.arange(8)
FLOATS = np.arange(8, dtype=np.float32)
KEY = np.array([7, 11], np.uint32)
DOUBLE = np.array([1.5, -2.0])

LOSES_NOTHING: dict[str, tuple[Any, ...]] = {
    "seed": (lambda s: jax.random.key_data(jax.random.key(s)), 3),
    "labels": (lambda i: i + 1, NUMBERS),
    "labels times a factor": (lambda i: 2 * i - 100, NUMBERS),
    "index": (lambda x, i: x[i], FLOATS, 3),
    "index times a stride": (lambda x, i: x[i * 1000], FLOATS, 3),
    "start": (lambda x, i: lax.dynamic_slice(x, (i * 4096 * 4096,), (2,)), FLOATS, 1),
    "scatter": (lambda x, i: x.at[i * i].add(1.0, mode="drop"), FLOATS, NUMBERS),
    "gather and fill": (lambda x, i: jnp.take(x, i), FLOATS, NUMBERS),
    "fori_loop": (lambda x: lax.fori_loop(0, 10, lambda i, y: y + x[i], x[0]), FLOATS),
    "fori_loop to an argument": (
        lambda x, n: lax.fori_loop(0, n, lambda i, y: y + x[i], x[0]), FLOATS, 3,
    ),
    "while_loop": (
        lambda x: lax.while_loop(lambda c: c[0] < 10, lambda c: (c[0] + 2, x), (0, x)), FLOATS,
    ),
    "while_loop down": (
        lambda x: lax.while_loop(lambda c: c[0] > -10, lambda c: (c[0] - 3, x), (0, x)), FLOATS,
    ),
    "scan": (lambda x: lax.scan(lambda c, y: (c + y, c), x[0], x), FLOATS),
    "reversed scan": (lambda x: lax.scan(lambda c, y: (c + y, c), x[0], x, reverse=True), FLOATS),
    "two counters": (
        lambda x: lax.fori_loop(0, 100, lambda i, c: (c[0] + 7, c[1] * 2), (0, x)), FLOATS,
    ),
    "count": (lambda x: (x > 2).sum(), FLOATS),
    "running count": (lambda x: jnp.cumsum(x > 2), FLOATS),
    "argmax": (lambda x: (jnp.argmax(x), jnp.argsort(x)), FLOATS),
    "minimum": (lambda i: (i.min(), i.max(), jnp.clip(i, 0, 5)), NUMBERS),
    "searchsorted": (lambda x: jnp.searchsorted(x, x), FLOATS),
    "nonzero": (lambda x: jnp.nonzero(x > 2, size=4), FLOATS),
    "unique": (lambda x: jnp.unique(x, size=8), FLOATS),
    "quotients": (lambda i: (i // 3, i % 3, abs(i), jnp.sign(i)), NUMBERS),
    "unravel_index": (lambda i: jnp.unravel_index(i, (2, 4)), NUMBERS),
    "one_hot": (lambda i: jax.nn.one_hot(i, 8, dtype=jnp.float32), NUMBERS),
    "step of an optimizer": (lambda t: 1 - jnp.float32(0.9) ** (t + 1).astype(jnp.float32), 3),
    "low bits alone": (lambda i: (i * i * i + 7).astype(jnp.int32), NUMBERS),
    "low bits by a mask": (lambda i: ((i * i * i) & 0xFFFF).astype(jnp.uint32), NUMBERS),
    "random numbers": (lambda k: jax.random.normal(k, (4,), jnp.float32), KEY),
    "random order": (lambda k, x: jax.random.permutation(k, x), KEY, FLOATS),
    "category": (lambda k, x: jax.random.categorical(k, x), KEY, FLOATS),
    "FP64": (lambda x: (jnp.frexp(x), jnp.nextafter(x, 3.0)), DOUBLE),
    "FP64 by random bits": (lambda k: jax.random.uniform(k, (4,)), KEY),
    "FP64 from integers": (lambda i: (i * i * i).astype(float), NUMBERS),
}  # fmt: skip

MAY_LOSE: dict[str, tuple[Any, ...]] = {
    "product": (lambda i: i * i, NUMBERS),
    "product in a condition": (
        lambda n: lax.while_loop(lambda i: i * i < n, lambda i: i + 1, 0), 30,
    ),
    "sum": (lambda i: i.sum(), np.arange(1000)),
    "running sum": (lambda i: jnp.cumsum(i), np.arange(1000)),
    "sum in a loop": (lambda i: lax.fori_loop(0, 1000, lambda j, s: s + i[j], 0), np.arange(1000)),
    "shift": (lambda i: i << 20, NUMBERS),
    "constant": (lambda i: i + 2**40, NUMBERS),
    "factorial": (lambda n: lax.fori_loop(1, n, lambda i, p: p * i, 1), 21),
    "power": (lambda i: i**5, NUMBERS),
    "hash": (lambda i: (i ^ (i >> 3)) * np.uint64(11400714819323198485), NUMBERS.astype(np.uint64)),
    "random bits": (lambda k: jax.random.bits(k, (3,), "uint64"), KEY),
    "random integers": (lambda k: jax.random.randint(k, (3,), 0, 10), KEY),
    "leading zeros": (lambda i: lax.clz(i), NUMBERS),
    "complement": (lambda i: ~i, NUMBERS.astype(np.uint64)),
    "below zero": (lambda i: i - np.uint64(9), NUMBERS.astype(np.uint64)),
    "beside FP64": (lambda i, x: (i * i, jnp.nextafter(x, 3.0)), NUMBERS, DOUBLE),
}  # fmt: skip


def told(program: Callable[..., Any], *args: Any) -> list[str]:
    found = found_in(bytecode(Case("", "", program, args, x64=True)), Policy())
    return [str(finding) for finding in found if finding.rule.code == "JAX_INT64"]


@pytest.mark.parametrize("name", LOSES_NOTHING)
def test_nobody_is_told_of_numbers_that_stay_small(name: str) -> None:
    assert told(*LOSES_NOTHING[name]) == []


@pytest.mark.parametrize("name", MAY_LOSE)
def test_arithmetic_that_may_lose_is_told_of_at_its_line(name: str) -> None:
    first, *_ = told(*MAY_LOSE[name])
    line = MAY_LOSE[name][0].__code__.co_firstlineno
    assert shown_line(f"{__file__}:{line}") in first


def test_native_integers_lose_nothing() -> None:
    code = bytecode(Case("", "", lambda i: i * i, (NUMBERS,), x64=True))
    assert not [f for f in found_in(code, Policy(native_int64=True)) if f.rule.code == "JAX_INT64"]


# Ranges hold what `cpu` computes

SMALL = st.integers(-9, 9)
PAIRS = 19 * 19
BINARY = {
    "abs": lambda a, b: abs(a),
    "add": lax.add,
    "and": lax.bitwise_and,
    "clamp": lambda a, b: lax.clamp(jnp.int64(-3), a, b),
    "convert": lambda a, b: a.astype("int8") + b,
    "divide": lax.div,
    "integer_pow": lambda a, b: lax.integer_pow(a, 3) + b,
    "maximum": lax.max,
    "minimum": lax.min,
    "multiply": lax.mul,
    "negate": lambda a, b: -a,
    "not": lambda a, b: ~a,
    "or": lax.bitwise_or,
    "popcnt": lambda a, b: lax.population_count(a),
    "remainder": lax.rem,
    "select": lambda a, b: jnp.where(a > b, a, b),
    "shift_left": lax.shift_left,
    "shift_right_arithmetic": lax.shift_right_arithmetic,
    "shift_right_logical": lax.shift_right_logical,
    "sign": lambda a, b: lax.sign(a),
    "subtract": lax.sub,
    "xor": lax.bitwise_xor,
}


@pytest.mark.parametrize("name", BINARY)
@given(st.tuples(SMALL, SMALL), st.tuples(SMALL, SMALL))
@settings(max_examples=6)
def test_ranges_hold_every_result(
    name: str, first: tuple[int, int], second: tuple[int, int]
) -> None:
    (a, b), (c, d) = sorted(first), sorted(second)
    pairs = np.array(list(itertools.product(range(a, b + 1), range(c, d + 1))))
    if name in ("divide", "remainder"):
        pairs = pairs[pairs[:, 1] != 0]
    if not len(pairs):
        return

    def program(x: Any, y: Any) -> Any:
        bounded = lax.clamp(jnp.int64(a), x, jnp.int64(b)), lax.clamp(jnp.int64(c), y, jnp.int64(d))
        return BINARY[name](*bounded)

    padded = np.resize(pairs, (PAIRS, 2))  # of one shape, so that it is compiled once
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        values = np.asarray(BINARY[name](*jnp.asarray(padded.T)))
    code = bytecode(Case("", "", program, (np.int64(0), np.int64(0)), x64=True))
    with hlo.context():
        whole = Program(hlo.load(code), Policy())
        (result,) = terminator(whole.graph.functions[whole.graph.main]).operands
        found = whole.integer_ranges.of(result, ())
    assert all(found.low <= value <= found.high for value in values.tolist())
