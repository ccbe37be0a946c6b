"""Views on devices: the same numbers in memory of their own, whatever the order of the axes."""

from itertools import permutations
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from models.weights.copying import make_array, stacked

BF16 = np.dtype(ml_dtypes.bfloat16)
F32 = np.dtype(np.float32)
ROOT = np.random.default_rng(0).normal(size=(1, 7, 3, 13)).astype(F32)
LARGE = np.random.default_rng(1).normal(size=(700, 900)).astype(F32)
PLATFORMS = ["cpu", "neuron"]


def copied(
    view: np.ndarray, dtype: np.dtype[Any], platform: str = "cpu", *, copies: bool = False
) -> jax.Array:
    place = SingleDeviceSharding(jax.devices(platform)[1])
    return make_array(view.shape, dtype, place, lambda index: view[index], copies=copies)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(("stored", "wanted"), [(BF16, BF16), (F32, BF16), (BF16, F32)], ids=str)
def test_any_order_of_the_axes(stored: Any, wanted: Any, platform: str) -> None:
    for axes in permutations(range(4)):
        view = ROOT.astype(stored).transpose(axes)
        got = copied(view, wanted, platform)
        assert got.dtype == wanted
        assert got.devices() == {jax.devices(platform)[1]}
        np.testing.assert_array_equal(got, view.astype(wanted), err_msg=str(axes))


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
@pytest.mark.parametrize("platform", PLATFORMS)
def test_slices_heads_and_single_numbers(view: np.ndarray, platform: str) -> None:
    np.testing.assert_array_equal(copied(np.asarray(view), F32, platform), view)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("offset", [0, 4, 64])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("copies", [False, True])
def test_the_array_does_not_change_with_the_file(
    copies: bool, offset: int, turned: bool, platform: str, tmp_path: Path
) -> None:
    stored = np.arange(60_000, dtype=F32)
    stored.tofile(tmp_path / "numbers")
    view = np.memmap(tmp_path / "numbers", F32, "r", offset, (100, 500))
    view = view.T if turned else view
    expected = np.array(view)
    got = copied(view, F32, platform, copies=copies)
    with (tmp_path / "numbers").open("r+b") as file:
        file.write(bytes(stored.nbytes))
    assert not view.any()
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("axes", list(permutations(range(3))), ids=str)
def test_stacking_keeps_the_order_in_memory(axes: tuple[int, ...]) -> None:
    views = [(ROOT[0] + i).astype(BF16).transpose(axes) for i in range(3)]
    got = stacked(views)
    assert got.dtype == BF16
    np.testing.assert_array_equal(got, np.stack(views))
    assert got[1].strides == views[1].strides


def test_a_stack_of_one_has_an_axis_of_its_own() -> None:
    assert stacked([LARGE.T]).shape == (1, 900, 700)
