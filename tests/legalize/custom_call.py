"""What the tests of custom calls share: calls as JAX programs write them, and bounds of errors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from neuronjax.errors import UnsupportedProgramError
from tests.legalize.chip import run

BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
U32 = np.dtype(np.uint32)
FP32_UNITS = 8
GENERATOR = np.random.default_rng(0)
ROWS = GENERATOR.standard_normal((8, 32)) * 3
LINE = np.concatenate([np.linspace(-12, 12, 97), [0.0, -0.0, 1e-6, -30.0, 30.0]])
EQUALS = np.floor(np.abs(ROWS) / 2)
WEIGHT = GENERATOR.standard_normal(32)
IMAGES = GENERATOR.standard_normal((2, 3, 5, 2))


def call(
    target: str, results: Sequence[tuple[tuple[int, ...], Any]], config: str | None, *operands: Any
) -> Any:
    """A custom call as JAX programs write it; a tuple if it has several results."""
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results]
    legacy: dict[str, Any] = {"custom_call_api_version": 2, "legacy_backend_config": config}
    options = {} if config is None else legacy
    return jax.ffi.ffi_call(target, types if len(types) > 1 else types[0], **options)(*operands)


def half_units(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Half a unit in the last place of a type at these values."""
    info = ml_dtypes.finfo(dtype)
    exponents = np.floor(np.log2(np.maximum(np.abs(values), float(info.smallest_normal))))
    return np.exp2(exponents) * float(info.eps) / 2


def assert_rounded(found: Any, expected: np.ndarray, largest: float) -> None:
    found = np.asarray(found)
    assert found.shape == expected.shape
    if expected.dtype != np.float64:
        np.testing.assert_array_equal(found, expected)
        return
    bound = half_units(expected, found.dtype)
    bound = bound + FP32_UNITS * 2 * half_units(np.float64(largest), F32)
    error = np.abs(found.astype(np.float64) - expected)
    assert np.all(error <= bound), f"{np.max(error / bound)} times the bound"


def error_of(target: str, results: Any, config: str | None, operands: Any, **environ: str) -> str:
    """What compiling a program with that call says."""

    def program(*operands: Any) -> Any:
        return call(target, results, config, *operands)

    with pytest.raises(UnsupportedProgramError) as raised:
        run(program, *operands, **environ)
    return str(raised.value)


VECTOR, MATRIX, IMAGE = np.ones(3, F32), np.ones((4, 6), F32), np.ones((1, 2, 2, 1), F32)
TRN3 = {"NEURONJAX_TARGET": "trn3-gen1-ultraserver", "NEURON_RT_NUM_CORES": "1"}
MX_INPUT = np.ones((4, 64), BF16)
MX_RESULTS = [((4, 16), U32), ((4, 2), np.uint8)]
WORDS, SCALES = np.ones((4, 16), U32), np.ones((4, 2), np.uint8)


def mx_config(**fields: Any) -> str:
    return json.dumps({"dtype": "float8_e5m2", "dim": -1, "block_size": 32} | fields)


def dot_config(**fields: Any) -> str:
    return json.dumps({"scaled_dot_backend_config": {"element_dtype": "float8_e5m2"} | fields})


ALONE = "rhs_contracting_dim=0,tp_degree=1,num_groups=1,use_sb_to_sb=0"
