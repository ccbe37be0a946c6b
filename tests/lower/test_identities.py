"""Operations that give one of their operands cost no instruction, and change no value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lower.differential import check
from tests.program.counts import count_instructions

SHAPE = (130, 70)
FLAGS = np.random.default_rng(0).random(SHAPE) < 0.5
NUMBERS = np.random.default_rng(1).integers(-(2**31), 2**31, SHAPE).astype(np.int32)
BYTES = NUMBERS.astype(np.int8)
REALS = np.where(FLAGS, -0.0, np.random.default_rng(2).standard_normal(SHAPE)).astype(np.float32)

CASES: list[tuple[str, Callable[..., Any], Callable[..., Any], np.ndarray]] = [
    ("and true", lambda x: ~(x & True), lambda x: ~x, FLAGS),
    ("true and", lambda x: ~(jnp.ones_like(x) & x), lambda x: ~x, FLAGS),
    ("or false", lambda x: ~(x | False), lambda x: ~x, FLAGS),
    ("xor false", lambda x: ~(x ^ False), lambda x: ~x, FLAGS),
    ("true if so", lambda x: ~jax.lax.select(x, jnp.ones_like(x), jnp.zeros_like(x)),
     lambda x: ~x, FLAGS),
    ("and all bits", lambda x: ~(x & -1), lambda x: ~x, NUMBERS),
    ("plus 0", lambda x: ~(x + 0), lambda x: ~x, NUMBERS),
    ("minus 0", lambda x: ~(x - 0), lambda x: ~x, NUMBERS),
    ("times 1", lambda x: ~(1 * x), lambda x: ~x, NUMBERS),
    ("over 1", lambda x: ~jax.lax.div(x, jnp.ones_like(x)), lambda x: ~x, NUMBERS),
    ("a real number times 1", lambda x: -(1 * x), lambda x: -x, REALS),
    ("a real number over 1", lambda x: -jax.lax.div(x, jnp.ones_like(x)), lambda x: -x, REALS),
    ("shifted by 0", lambda x: ~(x << 0 >> 0), lambda x: ~x, NUMBERS),
    ("wider and back", lambda x: ~x.astype(jnp.int32).astype(jnp.int8), lambda x: ~x, BYTES),
    ("a number of another type", lambda x: ~(x * jnp.int32(257).astype(jnp.int8)), lambda x: ~x,
     BYTES),
    ("no bits left", lambda x: x ^ jax.lax.shift_left(~x, jnp.full_like(x, 32)), lambda x: x ^ 0,
     NUMBERS),
    ("tril", lambda x: x & jnp.tril(jnp.ones(SHAPE, bool)),
     lambda x: x & (jax.lax.broadcasted_iota(jnp.int32, SHAPE, 0)
                    >= jax.lax.broadcasted_iota(jnp.int32, SHAPE, 1)), FLAGS),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_they_cost_nothing(case: Any) -> None:
    _, function, plain, argument = case
    assert count_instructions(check(function, argument)) == count_instructions(
        check(plain, argument)
    )


OTHERS: list[tuple[str, Callable[..., Any], np.ndarray]] = [
    ("0 minus", lambda x: 0 - x, NUMBERS),
    ("1 over", lambda x: jax.lax.div(jnp.ones_like(x), x | 1), NUMBERS),
    ("0 shifted", lambda x: 0 << (x & 31), NUMBERS),
    ("and 1", lambda x: x & 1, NUMBERS),
    ("false if so", lambda x: jax.lax.select(x, x & False, x | True), FLAGS),
    ("narrower and back", lambda x: ~x.astype(jnp.int8).astype(jnp.int32), NUMBERS),
    ("a sign beyond all bits", lambda x: x >> jnp.full_like(x, 32), NUMBERS),
    ("plus 0.0", lambda x: x + 0.0, REALS),
    ("chosen by a constant", lambda x: jnp.where(np.bool_(False), x, x + 1), NUMBERS),
]


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case[0])
def test_what_is_none_stays(case: Any) -> None:
    """Bit by bit, the sign of zero included."""
    _, function, argument = case
    check(function, argument)
