"""Loops that say their iterations are independent, and are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neuronjax import nki
from neuronjax.errors import KernelWarning
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from tests.nki.kernels import loaded, stored, tile

X = np.random.default_rng(0).standard_normal((128, 64), np.float32)
Range = Callable[[int], Any]


def running_sum(x: Tensor, over: Range) -> Tensor:
    """Every iteration stores what the sum is so far."""
    total, out = nl.zeros((128, 16), x.dtype), nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    for part in over(4):
        nisa.tensor_tensor(total, total, loaded(x[:, nl.ds(16 * part, 16)]), nl.add)
        nisa.dma_copy(out[:, nl.ds(16 * part, 16)], total)
    return out


def neighbours(x: Tensor, over: Range) -> Tensor:
    """Every column becomes twice the one before it."""
    columns = loaded(x)
    for number in over(63):
        nisa.tensor_scalar(columns[:, number + 1], columns[:, number], nl.multiply, 2.0)
    return stored(columns)


def inner(x: Tensor, over: Range) -> Tensor:
    """The inner loop hands on the greatest of the columns before, by way of another tile."""
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    for half in nl.affine_range(2):
        columns, greatest = loaded(x[nl.ds(64 * half, 64)]), nl.zeros((64, 1), x.dtype)
        for number in over(64):
            larger = tile((64, 1))
            nisa.tensor_tensor(larger, greatest, columns[:, number], nl.maximum)
            nisa.tensor_copy(greatest, larger)
            nisa.tensor_copy(columns[:, number], greatest)
        nisa.dma_copy(out[nl.ds(64 * half, 64)], columns)
    return out


EXPECTED = {
    running_sum: np.cumsum(X.reshape(128, 4, 16), axis=1).reshape(128, 64),
    neighbours: X[:, :1] * 2.0 ** np.arange(64),
    inner: np.maximum.accumulate(np.maximum(X, 0), axis=1),
}


@pytest.mark.parametrize("function", EXPECTED, ids=lambda function: function.__name__)
def test_what_iterations_hand_on_is_reported(function: Callable[..., Tensor]) -> None:
    kernel = nki.jit(function)
    with pytest.warns(KernelWarning, match=r"test_carried.py:\d+: reads what an earlier iteration"):
        result = nki.simulate(kernel)(X, nl.affine_range)
    np.testing.assert_allclose(result, EXPECTED[function], rtol=1e-5, atol=1e-5)
    assert not any("iteration of nl.affine" in note for note in kernel.trace(X, range).notes)
    ordered = kernel.trace(X, nl.sequential_range)
    assert not any("iteration of nl.affine" in note for note in ordered.notes)


def independent(x: Tensor) -> Tensor:
    """Sums over iterations, and tiles that each writes anew, may be older than a loop."""
    total, scratch = nl.zeros((128, 1), x.dtype), tile((128, 16))
    product = nl.ndarray((16, 16), nl.float32, nl.psum)
    for part in nl.affine_range(4):
        columns = nl.ds(16 * part, 16)
        nisa.dma_copy(scratch[:, 0:8], x[:, nl.ds(16 * part, 8)])
        nisa.dma_copy(scratch[:, 8:16], x[:, nl.ds(16 * part + 8, 8)])
        nisa.tensor_scalar(scratch, scratch, nl.multiply, 2.0)
        nisa.nc_matmul(product, scratch, loaded(x[:, columns]))
        nisa.tensor_tensor(total, total, nl.sum(scratch, axis=1, keepdims=True), nl.add)
    nisa.tensor_copy(scratch[0:16], product)
    nisa.tensor_tensor(scratch[0:16, 0:1], scratch[0:16, 0:1], total[0:16], nl.add)
    return stored(scratch[0:16, 0:1])


def test_sums_and_tiles_that_are_written_anew_are_allowed() -> None:
    kernel = nki.jit(independent)
    assert kernel.trace(X).notes == ()
    parts = X.reshape(128, 4, 16).astype(np.float64)
    expected = 2 * np.einsum("ipk,ip->k", parts, parts[:, :, 0]) + 2 * X.sum(1)[:16]
    result = nki.simulate(kernel)(X)
    np.testing.assert_allclose(result[:, 0], expected, rtol=1e-4, atol=1e-3)
