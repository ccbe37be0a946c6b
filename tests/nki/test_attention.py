"""Attention as a kernel: products, a softmax and transposes over several tiles."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from neuronjax import nki
from neuronjax.emulate import core
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor

LENGTH, WIDTH, ROWS = 256, 64, nl.tile_size.pmax


@nki.jit
def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(queryᵀ · key / √WIDTH) · value.

    query and key [WIDTH, LENGTH], value [LENGTH, WIDTH] -> [LENGTH, WIDTH].
    """
    out = nl.ndarray(value.shape, dtype=value.dtype, buffer=nl.shared_hbm)
    queries, keys = nl.load(query), nl.load(key)
    for tile in nl.affine_range(LENGTH // ROWS):
        rows = nl.ds(tile * ROWS, ROWS)
        scores = nl.ndarray((ROWS, LENGTH), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(scores, queries[:, rows], keys)
        weights = _exponents(scores)
        attended = nl.ndarray((ROWS, WIDTH), dtype=nl.float32, buffer=nl.psum)
        for part in nl.sequential_range(LENGTH // ROWS):
            columns = nl.ds(part * ROWS, ROWS)
            turned = nl.ndarray((ROWS, ROWS), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_transpose(turned, weights[:, columns])
            stationary = nl.ndarray((ROWS, ROWS), dtype=nl.float32)
            nisa.tensor_copy(stationary, turned)
            nisa.nc_matmul(attended, stationary, nl.load(value[columns]))
        result = nl.ndarray((ROWS, WIDTH), dtype=nl.float32)
        nisa.tensor_copy(result, attended)
        nl.store(out[rows], result)
    return out


def _exponents(scores: Tensor) -> Tensor:
    """The softmax of rows [ROWS, LENGTH] of products."""
    largest, total = (nl.ndarray((ROWS, 1), dtype=nl.float32) for _ in range(2))
    nisa.tensor_reduce(largest, nl.maximum, scores, axis=1, negate=True)
    nisa.tensor_scalar(largest, largest, nl.multiply, WIDTH**-0.5)
    weights = nl.ndarray(scores.shape, dtype=nl.float32)
    nisa.activation_reduce(weights, nl.exp, scores, nl.add, total, bias=largest, scale=WIDTH**-0.5)
    nisa.reciprocal(total, total)
    nisa.tensor_scalar(weights, weights, nl.multiply, total)
    return weights


RNG = np.random.default_rng(0)
QUERY, KEY = (RNG.standard_normal((WIDTH, LENGTH), dtype=np.float32) for _ in range(2))
VALUE = RNG.standard_normal((LENGTH, WIDTH), dtype=np.float32)


@pytest.mark.parametrize("order", [None, core.DataflowOrder(seed=3)], ids=["program", "dataflow"])
def test_attention(order: core.Order | None) -> None:
    scores = (QUERY.T @ KEY / WIDTH**0.5).astype(np.float64)
    expected = np.asarray(jax.nn.softmax(scores)) @ VALUE
    result = nki.simulate(attention, order)(QUERY, KEY, VALUE)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
