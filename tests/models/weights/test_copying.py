"""Copies of views: the same numbers in memory of their own, whatever the order of the axes."""

from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from models.weights.copying import gathered

BF16 = np.dtype(ml_dtypes.bfloat16)
F32 = np.dtype(np.float32)
ROOT = np.random.default_rng(0).normal(size=(1, 70, 3, 130)).astype(F32)
LARGE = np.random.default_rng(1).normal(size=(700, 900)).astype(F32)


def copied(view: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    with ThreadPoolExecutor(3) as pool:
        return gathered([view], view.shape, dtype, pool)


@pytest.mark.parametrize("axes", list(permutations(range(4))), ids=str)
@pytest.mark.parametrize(("stored", "wanted"), [(BF16, BF16), (F32, BF16), (BF16, F32)], ids=str)
def test_any_order_of_the_axes(axes: tuple[int, ...], stored: Any, wanted: Any) -> None:
    view = ROOT.astype(stored).transpose(axes)
    got = copied(view, wanted)
    assert got.dtype == wanted
    assert got.flags.c_contiguous
    np.testing.assert_array_equal(got, view.astype(wanted))


@pytest.mark.parametrize(
    "view",
    [
        LARGE,
        LARGE.T,
        LARGE.T.reshape(900, 7, 100),
        LARGE.reshape(700, 9, 100).transpose(1, 2, 0),
        LARGE[::3, ::-2].T,
        LARGE[100:101].T,
        LARGE[:0].T,
        LARGE[0, 0],
        np.broadcast_to(LARGE[0], (300, 900)).T,
    ],
    ids=lambda view: str(view.shape),
)
def test_slices_heads_and_single_numbers(view: np.ndarray) -> None:
    np.testing.assert_array_equal(copied(np.asarray(view), F32), view)


def test_the_copy_has_memory_of_its_own_that_begins_with_a_page() -> None:
    got = copied(LARGE, F32)
    assert not np.shares_memory(got, LARGE)
    assert got.ctypes.data % 4096 == 0


def test_views_are_stacked_along_the_first_axis() -> None:
    views = [LARGE.T + i for i in range(3)]
    with ThreadPoolExecutor(2) as pool:
        got = gathered(views, (3, 900, 700), BF16, pool)
    np.testing.assert_array_equal(got, np.stack(views).astype(BF16))
