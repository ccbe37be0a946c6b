"""Both settings of precise floating point: numbers in the formats that kernels name, or in FP32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from neuronjax import nki
from neuronjax.emulate.core import DataflowOrder
from neuronjax.errors import KernelError
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from tests.nki.kernels import loaded, stored, tile

BF16, FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3
ROWS = 128


@nki.jit
def there_and_back(x: Tensor) -> Tensor:
    """x + 1 - 1 in BF16, which has 8 bits of precision."""
    data = tile(x.shape, nl.bfloat16)
    nisa.dma_copy(data, x)
    nisa.tensor_scalar(data, data, nl.add, 1.0)
    nisa.tensor_scalar(data, data, nl.subtract, 1.0)
    return stored(data)


@nki.jit
def tenths(x: Tensor) -> Tensor:
    """x · 0.1, with the constant in BF16."""
    factor = tile(x.shape, nl.bfloat16)
    nisa.memset(factor, 0.1)
    result = tile(x.shape)
    nisa.tensor_tensor(result, loaded(x), factor, nl.multiply)
    return stored(result)


@nki.jit
def squared_in_fp8(x: Tensor) -> Tensor:
    """xᵀ · x by products of E4M3, which has 4 bits of precision."""
    narrow, sums = tile(x.shape, nl.float8_e4m3), tile((x.shape[1], x.shape[1]), buffer=nl.psum)
    nisa.dma_copy(narrow, x)
    nisa.nc_matmul(sums, narrow, narrow)
    result = tile(sums.shape)
    nisa.tensor_copy(result, sums)
    return stored(result)


@nki.jit
def in_rounds(x: Tensor) -> Tensor:
    """The same as `there_and_back` over tiles of 128 rows in a loop."""
    out = nl.ndarray(x.shape, dtype=nl.bfloat16, buffer=nl.shared_hbm)
    for first in nl.affine_range(0, x.shape[0], ROWS):
        data = tile((ROWS, x.shape[1]), nl.bfloat16)
        nisa.dma_copy(data, x[nl.ds(first, ROWS)])
        nisa.tensor_scalar(data, data, nl.add, 1.0)
        nisa.tensor_scalar(data, data, nl.subtract, 1.0)
        nisa.dma_copy(out[nl.ds(first, ROWS)], data)
    return out


@nki.jit
def by_programs(x: Tensor) -> Tensor:
    """The same, half of the rows by each of two programs."""
    out = nl.ndarray(x.shape, dtype=nl.bfloat16, buffer=nl.shared_hbm)
    own = nl.ds(nl.program_id(0) * ROWS, ROWS)
    data = tile((ROWS, x.shape[1]), nl.bfloat16)
    nisa.dma_copy(data, x[own])
    nisa.tensor_scalar(data, data, nl.add, 1.0)
    nisa.tensor_scalar(data, data, nl.subtract, 1.0)
    nisa.dma_copy(out[own], data)
    return out


@nki.jit
def filling(x: Tensor) -> Tensor:
    """Three tiles that fill most of SBUF in BF16: in FP32 they would not fit."""
    first, second, third = (tile((ROWS, 24 * 1024), nl.bfloat16) for _ in range(3))
    nisa.memset(first, 1.0)
    nisa.tensor_scalar(second, first, nl.add, 1 / 1024)
    nisa.tensor_tensor(third, second, first, nl.subtract)
    result = tile(x.shape)
    nisa.tensor_tensor(result, loaded(x), third[:, : x.shape[1]], nl.add)
    return stored(result)


SMALL = np.full((ROWS, 4), 1 / 1024, np.float32)
ELEVENTHS = np.full((ROWS, 2), 1.1, np.float32)
"""1.1 is 1.125 in E4M3, whose step is 1/8 there."""
CASES: dict[str, tuple[Callable[..., Any], np.ndarray, float, float]] = {
    # kernel, argument, the number in every element: precise, and in FP32
    "sums": (there_and_back, SMALL, 0.0, 1 / 1024),
    "arguments": (there_and_back, SMALL.astype(BF16), 0.0, 1 / 1024),
    "constants": (tenths, np.ones((ROWS, 4), np.float32), 0.10009765625, np.float32(0.1)),
    "products": (squared_in_fp8, ELEVENTHS, 128 * 1.125**2, 128 * 1.1**2),
    "loops": (in_rounds, np.tile(SMALL, (8, 1)), 0.0, 1 / 1024),
    "programs of a grid": (by_programs[2], np.tile(SMALL, (2, 1)), 0.0, 1 / 1024),
    "more than SBUF": (filling, SMALL, 1 / 1024, 2 / 1024),
}


@pytest.mark.parametrize("order", [None, DataflowOrder(seed=3)], ids=["program", "dataflow"])
@pytest.mark.parametrize("case", CASES)
def test_numbers_are_rounded_to_their_format_or_not(case: str, order: DataflowOrder | None) -> None:
    kernel, x, precise, wide = CASES[case]
    for is_precise, expected in ((True, precise), (False, wide)):
        found = nki.simulate(kernel, order, precise_fp=is_precise)(x)
        np.testing.assert_allclose(found.astype(np.float64), expected, rtol=1e-6)
    assert found.dtype == np.float32


@pytest.mark.parametrize(("value", "expected"), [("0", 1 / 1024), ("1", 0.0), (None, 0.0)])
def test_the_variable_decides_where_a_call_does_not(
    value: str | None, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv("NKI_PRECISE_FP", raising=False)
    else:
        monkeypatch.setenv("NKI_PRECISE_FP", value)
    assert np.all(nki.simulate(there_and_back)(SMALL) == expected)
    assert np.all(nki.simulate(there_and_back, precise_fp=True)(SMALL) == 0.0)


@nki.jit
def doubled_in_place(x: Tensor) -> Tensor:
    data = loaded(x)
    nisa.tensor_scalar(data, data, nl.multiply, 1.001)
    nisa.tensor_scalar(data, data, nl.multiply, 1.001)
    nisa.dma_copy(x, data)
    return stored(data)


def test_arrays_that_are_written_to_keep_their_dtype() -> None:
    x = np.ones((ROWS, 4), BF16)
    returned = nki.simulate(doubled_in_place, precise_fp=False)(x)
    np.testing.assert_allclose(returned, 1.001**2, rtol=1e-6)
    assert x.dtype == BF16
    np.testing.assert_array_equal(x, np.full_like(x, 1.001**2))


@nki.jit
def same_width(x: Tensor) -> Tensor:
    return stored(loaded(x).view(nl.bfloat16))


@nki.jit
def other_width(x: Tensor) -> Tensor:
    return stored(loaded(x).view(nl.int32))


@pytest.mark.parametrize(
    ("kernel", "dtype", "words"),
    [
        (same_width, np.int16, r"holds int16 and is read or written as bfloat16"),
        (other_width, BF16, r"holds bfloat16 and is read or written as int32"),
    ],
)
def test_bits_of_a_narrow_number_are_no_other_type(
    kernel: Callable[..., Any], dtype: Any, words: str
) -> None:
    x = np.ones((ROWS, 4), dtype)
    nki.simulate(kernel)(x)
    with pytest.raises(KernelError, match=rf"{words}.* precise_fp=True"):
        nki.simulate(kernel, precise_fp=False)(x)
