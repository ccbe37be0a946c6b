"""Sorts against XLA:CPU: bit by bit, equals in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import neuronjax
from neuronjax.lower.tuning import Tuning
from neuronjax.program.program import Loop
from neuronjax.program.verify import verify
from neuronjax.program.walk import walk
from tests.lower.differential import check, host_operations

RNG = np.random.default_rng(0)
FLOATS = RNG.standard_normal((6, 37)).astype(np.float32)
FLOATS[2, 3:7] = [np.nan, np.inf, -np.inf, -0.0]
FLOATS[2, 7:9] = [0.0, -np.nan]
SMALL = np.nan_to_num(FLOATS, posinf=1, neginf=1)
TIES = RNG.integers(0, 5, (200, 3, 16)).astype(np.int32)
PARTED = (2 * np.random.default_rng(1).standard_normal((128, 5_003))).astype(np.float32)
LONG = RNG.standard_normal((2, 8_320)).astype(np.float32)  # in parts: 8,192 are sorted at once
LONG[1, 100:3000] = 7
MANY = RNG.standard_normal((3, 20_011)).astype(np.float32)
MANY[1] = np.round(MANY[1])
MANY[2, 16_000:] = -np.inf
SPECIAL = np.array(
    [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 3.4028235e38, -3.4028235e38, 1.0, -1.0],
    np.float32,
)
MIXED = RNG.permuted(np.tile(SPECIAL, (9, 4)), axis=1)
SUBNORMAL = RNG.integers(-4, 5, (5, 33)).astype(np.float32) * np.float32(1e-45)


FEW_ELEMENTS = Tuning(large_tile_share=0.005, sort_piece=16)
"""Numbers that leave so little room that a partition has 64 elements of a row at most."""


def _pairs(x: jax.Array) -> Any:
    """Two operands, and the first alone decides."""
    return lax.sort((x, jnp.arange(x.size, dtype=np.int32).reshape(x.shape)), dimension=1)


def _lexicographic(x: jax.Array) -> Any:
    return lax.sort((x, -x * 3 % 7, x + 1), dimension=0, num_keys=2)


CASES: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    "floats": (lambda x: jnp.sort(x, 1), FLOATS),
    "first dimension": (lambda x: jnp.sort(x, 0), FLOATS),
    "power of two": (lambda x: jnp.sort(x[:, :32], 1), FLOATS),
    "a row over all partitions": (lambda x: jnp.sort(x[0]), LONG),
    "a row of a power of two over all partitions": (lambda x: jnp.argsort(x[0, :1_024]), LONG),
    "rows over several partitions": (lambda x: jnp.argsort(x[:, :5_000], 1), MANY),
    "columns over several partitions": (lambda x: jnp.sort(x[:, :700].T, 0), MANY),
    "pairs over several partitions": (lambda x: _pairs(jnp.round(x[:, :2_000])), MANY),
    "descending over all partitions": (
        lambda x: jnp.sort(x[1, :4_100].astype(jnp.bfloat16), descending=True), LONG,
    ),
    "one element": (lambda x: lax.sort(x[:, :1], dimension=1), FLOATS),
    "argsort": (lambda x: jnp.argsort(x, 1), TIES),
    "descending": (lambda x: jnp.sort(x, 2, descending=True), TIES),
    "middle dimension": (lambda x: jnp.sort(x, 1), TIES),
    "pairs": (_pairs, FLOATS),
    "two keys": (_lexicographic, TIES),
    "three keys of floats": (lambda x: lax.sort((x, x[::-1], x), num_keys=3), FLOATS),
    "half": (lambda x: jnp.sort(x.astype(jnp.bfloat16), 1), FLOATS),
    "bytes": (lambda x: jnp.sort((x * 50).astype(np.int8), 1), SMALL),
    "truth": (lambda x: jnp.sort(x > 0, 1), FLOATS),
    "median": (lambda x: jnp.median(x, 1), FLOATS[:2]),
    "unsigned": (lambda x: jnp.sort(x.astype(np.uint32) << 30, 2), TIES),
    "none of floats": (lambda x: (lax.top_k(x, 0)[0].sum(), x * 2), FLOATS),
    "top of floats": (lambda x: lax.top_k(x, 5), FLOATS),
    "top of ties": (lambda x: lax.top_k(x, 16), TIES),
    "top of half": (lambda x: lax.top_k(x.astype(jnp.bfloat16), 3), FLOATS),
    "top of what is not finite": (lambda x: lax.top_k(x, 40), MIXED),
    "top of half that is not finite": (lambda x: lax.top_k(x.astype(jnp.bfloat16), 40), MIXED),
    "top of narrow that is not finite": (lambda x: lax.top_k(x.astype(jnp.float16), 9), MIXED),
    "top of zeros and subnormals": (lambda x: lax.top_k(x, 33), SUBNORMAL),
    "top of less than eight": (lambda x: lax.top_k(x[:, :3], 3), FLOATS),
    "top of one": (lambda x: lax.top_k(x[:, :1], 1), FLOATS),
    "top of a vector": (lambda x: lax.top_k(x[0], 9), LONG),
    "top of several rows of a partition": (lambda x: lax.top_k(x.astype(np.int8), 3), TIES),
    "top of columns": (lambda x: lax.top_k(x.T, 3), FLOATS),
    "top in parts": (lambda x: lax.top_k(x, 21), MANY),
    "top of parts of parts": (lambda x: lax.top_k(x[1], 50), MANY),
    "top of the lowest": (lambda x: lax.top_k(x[2:, 15_990:], 30), MANY),
    "top of many": (lambda x: lax.top_k(x[:, :1_100], 600), LONG),
    "approximate top": (lambda x: lax.approx_max_k(x, 5), SMALL),
    "approximate bottom of columns": (
        lambda x: lax.approx_min_k(x, 3, reduction_dimension=0), SMALL,
    ),
    "top of best parts": (lambda x: lax.top_k(x, 20), PARTED),
    "top of best parts with ties": (
        lambda x: lax.top_k(jnp.floor(x).reshape(2, 64, -1), 20), PARTED,
    ),
    "top of best parts of half": (lambda x: lax.top_k(x.astype(jnp.bfloat16), 9), PARTED),
    "top of best parts with NaN": (lambda x: lax.top_k(jnp.where(x > 6, jnp.nan, x), 20), PARTED),
    "top of best parts with zeros": (lambda x: lax.top_k(jnp.where(x > 7, x, x * 0), 20), PARTED),
    "top of best parts below zero": (
        lambda x: lax.top_k(jnp.where(x > 0, -jnp.inf, x), 20), PARTED,
    ),
    "top of long rows": (lambda x: lax.top_k(x, 16), LONG),
    "top of long rows with a rest": (lambda x: lax.top_k(x[:, :8_301], 7), LONG),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_sort(name: str) -> None:
    function, argument = CASES[name]
    program = check(function, argument)
    assert verify(program) == ()


IN_PIECES = {
    "pieces of steps within partitions": (
        lambda x: jnp.sort(jnp.tile(x[:, :300], (40, 1)), 1), Tuning(sort_piece=16),
    ),
    "pieces of steps over partitions": (
        lambda x: jnp.argsort(x[0, :8_200]), Tuning(sort_piece=16),
    ),
    "many rows over several partitions": (
        lambda x: jnp.argsort(x[:, :8_250].reshape(150, 110), 1), FEW_ELEMENTS,
    ),
    "many rows that fill their partitions": (
        lambda x: jnp.sort(x[:, :8_192].reshape(2, 64, 128), 2), FEW_ELEMENTS,
    ),
    "many columns over several partitions": (
        lambda x: _pairs(jnp.round(x[:, :8_250]).reshape(3, 110, 50)), FEW_ELEMENTS,
    ),
}  # fmt: skip
"""Functions with numbers by which a step has more pairs, or a box fewer rows, than there are."""


@pytest.mark.parametrize("name", IN_PIECES)
def test_steps_and_boxes_are_done_in_loops(name: str) -> None:
    function, tuning = IN_PIECES[name]
    program = check(function, LONG, tuning=tuning)
    assert verify(program) == ()
    assert any(isinstance(node, Loop) for _, node in walk(program))


def test_more_rows_and_longer_rows_take_no_less_time() -> None:
    """Rows of their own partitions and rows over several cost what their steps do."""
    sizes = [(1, 512), (1, 4_096), (64, 16_384), (100, 16_384), (200, 16_384)]
    times = [
        neuronjax.estimate(
            lambda x: jnp.sort(x, 1), jax.ShapeDtypeStruct(size, jnp.float32), target="trn1.2xlarge"
        ).step_ns
        for size in sizes
    ]
    assert times == sorted(times)


BEYOND = {
    "sort": lambda x: jnp.sort(jnp.tile(x, (1, 2)), 1),
    "approximate top k": lambda x: jax.lax.approx_max_k(jnp.tile(x, (1, 2)), 3),
}
"""Functions that sort rows longer than all partitions have room for."""


@pytest.mark.parametrize("name", BEYOND)
def test_rows_beyond_all_partitions_are_left_to_the_host(name: str) -> None:
    program = check(BEYOND[name], LONG, host=True, tuning=FEW_ELEMENTS)
    assert host_operations(program) == ["sort"]
