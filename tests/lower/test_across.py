"""Sums across rows of memory and over everything, against XLA:CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.lower.differential import Tolerance
from tests.lower.test_matmul import drawn, held
from tests.program.counts import count_instructions

CLOSE = Tolerance(ulps=4, relative=1e-5)


def centred(x: jax.Array) -> Any:
    """What group norms do: differences, and sums of their squares."""
    y = x - x[:1, :, :1]
    return y, (y * y).sum((0, 2))


ACROSS: list[tuple[str, Callable[..., Any], tuple[int, ...]]] = [
    ("columns", lambda x: x.sum(0), (4096, 100)),
    ("many columns", lambda x: x.sum(0), (1030, 2500)),
    ("few rows of many columns", lambda x: x.sum(0), (260, 2500)),
    ("everything", lambda x: x.sum(), (1000, 1300)),
    ("a prime number", lambda x: x.sum(), (130007,)),
    ("two dimensions", lambda x: (x * x).sum((0, 1)), (30, 70, 33)),
    ("with another result", lambda x: (x * 2, jnp.sqrt((x * x).sum(0)) * 2), (2000, 64)),
    ("groups of neighbours", lambda x: x.sum((0, 2)), (1500, 70, 2)),
    ("group norm", centred, (2048, 32, 10)),
    ("rows of two dimensions", lambda x: x.sum((0, 1, 3)), (30, 70, 32, 10)),
    ("a mean", lambda x: jnp.mean(x, axis=0) + 1, (1500, 70)),
]

OTHERWISE: list[tuple[str, Callable[..., Any], tuple[int, ...]]] = [
    ("few rows", lambda x: x.sum(0), (100, 70)),
    ("a maximum", lambda x: x.max(0), (1500, 70)),
    ("around wide groups", lambda x: x.sum((0, 2)), (1500, 70, 40)),
    ("what waits for it", lambda x: x - x.mean(0), (1500, 7)),
]


@pytest.mark.parametrize("case", ACROSS, ids=lambda case: case[0])
def test_sums_across_rows(case: Any) -> None:
    _, function, shape = case
    program = held(function, drawn(shape), tolerance=CLOSE)
    assert count_instructions(program)["nc_matmul"] > 0


@pytest.mark.parametrize("case", OTHERWISE, ids=lambda case: case[0])
def test_other_reductions(case: Any) -> None:
    _, function, shape = case
    program = held(function, drawn(shape), tolerance=CLOSE)
    assert count_instructions(program)["nc_matmul"] == 0


def test_sums_of_two_byte_numbers() -> None:
    held(lambda x: x.astype(jnp.float32).sum(0), drawn((1500, 70), "bfloat16"), tolerance=CLOSE)
