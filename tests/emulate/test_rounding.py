"""What engines write: conversions of every type, and stochastic rounding."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from neuronjax.emulate.element_types import Rounding, numpy_dtype
from neuronjax.formats import FORMATS
from neuronjax.program.element_types import ELEMENT_TYPES, INTEGERS, Integer
from neuronjax.rounding import round_scalar
from tests.emulate.single import execute

EDGES = [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, 447.0, 464.0, 1e5, 3e38, -3e38, 1e-8, 1e-40]
VALUES = np.array([[*EDGES, *np.random.default_rng(0).standard_normal(115) * 20]], np.float32)
INFINITE = np.array([[np.inf, -np.inf, np.nan]], np.float32)


def written(dtype: str, values: np.ndarray, rounding: Rounding | None = None) -> np.ndarray:
    return execute(
        "tensor_scalar dst={y} data={x} op0=add operand0=#-0.0", {"x": values},
        {"y": (dtype, values.shape)}, rounding=rounding or Rounding(),
    )["y"]  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_numbers_are_rounded_to_nearest(name: str) -> None:
    found = written(name, VALUES).astype(np.float32)[0]
    expected = [round_scalar(float(each), FORMATS[name]) for each in VALUES[0]]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e5m2", "float8_e4m3"])
def test_saturating_writes(name: str) -> None:
    found = written(name, INFINITE, Rounding(overflow="saturate")).astype(np.float32)[0]
    assert found[:2].tolist() == [FORMATS[name].max, -FORMATS[name].max]
    assert np.isnan(found[2])


@pytest.mark.parametrize("name", sorted(INTEGERS))
def test_integers_are_rounded_and_saturate(name: str) -> None:
    info = np.iinfo(name)
    found = written(name, np.concatenate([VALUES, INFINITE], 1))[0].tolist()
    whole = [round(float(each)) for each in VALUES[0]]
    expected = [min(max(each, info.min), info.max) for each in whole]
    assert found == [*expected, info.max, info.min, 0]


def test_stochastic_rounding_is_unbiased() -> None:
    x = np.full((128, 512), 1 + 0.3 * 2.0**-7, np.float32)
    found = written("bfloat16", x, Rounding(mode="stochastic", seed=1)).astype(np.float64)
    assert set(found.flat) == {1.0, 1 + 2.0**-7}
    assert abs(((found - 1) * 2**7).mean() - 0.3) < 0.01


def test_stochastic_rounding_depends_on_the_seed_alone() -> None:
    rows = {seed: written("bfloat16", VALUES, Rounding(mode="stochastic", seed=seed)).tobytes()
            for seed in range(4)}  # fmt: skip
    again = written("bfloat16", VALUES, Rounding(mode="stochastic", seed=2)).tobytes()
    assert rows[2] == again
    assert len(set(rows.values())) == 4


@pytest.mark.parametrize("name", sorted(ELEMENT_TYPES))
def test_elements_of_every_type_have_a_dtype_of_their_width(name: str) -> None:
    kind = ELEMENT_TYPES[name]
    assert numpy_dtype(kind).itemsize * 8 == kind.storage_bits
    if isinstance(kind, Integer):
        assert numpy_dtype(kind).name == name


def test_tfloat32_keeps_ten_bits() -> None:
    x = np.array([[1 + 2.0**-11, 1 + 2.0**-10, 1 + 3 * 2.0**-11]], np.float32)
    assert written("tfloat32", x)[0].tolist() == [1, 1 + 2.0**-10, 1 + 2.0**-9]


def test_equal_types_move_bits() -> None:
    codes = np.arange(256, dtype=np.uint8).reshape(1, 256)
    x = codes.view(ml_dtypes.float8_e4m3fn)
    for text in ("tensor_copy dst={y} src={x}", "dma_copy dst={y} src={hbm_x}"):
        found = execute(text, {"x": x}, {"y": ("float8_e4m3fn", (1, 256))})["y"]
        np.testing.assert_array_equal(found.view(np.uint8), codes)
