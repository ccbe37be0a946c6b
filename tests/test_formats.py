"""Formats against ml_dtypes, gfloat, the documented constants, and the project's other tables."""

from __future__ import annotations

import math

import gfloat
import ml_dtypes
import numpy as np
import pytest
from gfloat import formats as gformats

from neuronjax.errors import UnknownFormatError
from neuronjax.formats import (
    FLOAT4_E2M1FN,
    FORMATS,
    MX_FORMATS,
    Format,
    format_named,
    format_of,
    format_of_element_type,
)
from neuronjax.hlo.module import ELEMENT_TYPES
from neuronjax.machine.chips import CHIPS
from tests.rounding.cases import GFLOAT, WITH_DTYPE

ALL = list(FORMATS.values())
ENUMERABLE = [form for form in ALL if form.bits <= 16]


def same(found: float, expected: float) -> bool:
    if math.isnan(expected):
        return math.isnan(found)
    return found == expected and math.copysign(1, found) == math.copysign(1, expected)


@pytest.mark.parametrize("form", WITH_DTYPE, ids=lambda form: form.name)
def test_every_code_is_ml_dtypes(form: Format) -> None:
    codes = np.arange(form.codes, dtype={1: np.uint8, 2: np.uint16}[form.dtype.itemsize])
    with np.errstate(invalid="ignore"):  # signalling NaN
        expected = codes.view(form.dtype).astype(np.float64)
    wrong = [c for c in codes.tolist() if not same(form.decode(c), float(expected[c]))]
    assert wrong == []


@pytest.mark.parametrize("form", ENUMERABLE, ids=lambda form: form.name)
def test_every_code_is_gfloats(form: Format) -> None:
    info = GFLOAT[form.name]
    found = [form.decode(code) for code in range(form.codes)]
    expected = [gfloat.decode_float(info, code).fval for code in range(form.codes)]
    assert [i for i, pair in enumerate(zip(found, expected, strict=True)) if not same(*pair)] == []


@pytest.mark.parametrize("form", ALL, ids=lambda form: form.name)
def test_limits_are_gfloats(form: Format) -> None:
    info = GFLOAT[form.name]
    assert form.bits == info.k
    assert form.bias == info.bias
    assert form.signed == info.is_signed
    assert form.max == info.max
    assert form.max_exponent == info.emax
    assert form.epsilon == info.eps
    assert form.smallest_normal == info.smallest_normal
    assert form.smallest_subnormal == info.smallest
    assert form.has_nan == (info.num_nans > 0)
    assert form.has_infinity == (info.domain == gfloat.Domain.Extended)
    assert form.has_zero == info.has_zero


@pytest.mark.parametrize("form", [f for f in ALL if f.dtype is not None], ids=lambda f: f.name)
def test_limits_are_ml_dtypes(form: Format) -> None:
    limits = ml_dtypes.finfo(form.dtype)
    assert form.max == float(limits.max)
    assert form.smallest_normal == float(limits.smallest_normal)
    assert form.smallest_subnormal == float(limits.smallest_subnormal)
    assert form.bits == limits.bits
    assert form.storage_bits == 8 * form.dtype.itemsize
    if form.mantissa_bits:
        assert form.epsilon == float(limits.eps)


@pytest.mark.parametrize(
    ("name", "largest"),
    [
        # Neuron docs: "Data types", NCC_EVRF051, trn3 architecture guide; OCP MX 1.0, table 1 ff.
        ("float8_e4m3", 240.0),
        ("float8_e4m3fn", 448.0),
        ("float8_e5m2", 57344.0),
        ("float8_e3m4", 15.5),
        ("float4_e2m1fn", 6.0),
        ("float16", 65504.0),
        ("float8_e8m0fnu", 2.0**127),
        ("tfloat32", (2 - 2.0**-10) * 2.0**127),
    ],
)
def test_documented_maximum(name: str, largest: float) -> None:
    assert format_named(name).max == largest


def test_lookup() -> None:
    for form in ALL:
        assert format_named(form.name) is form
        if form.dtype is not None:
            assert form.dtype.name == form.name
            assert format_of(form.dtype) is format_of(form.dtype.type) is form
        if form.element_type is not None:
            assert format_of_element_type(form.element_type) is form
            assert ELEMENT_TYPES[form.element_type] == form.dtype


@pytest.mark.parametrize(
    ("find", "what", "message"),
    [
        (format_named, "fp9", "number format 'fp9'.*float8_e4m3fn"),
        (format_of, np.int32, "int32"),
        (format_of, ml_dtypes.float8_e4m3fnuz, "float8_e4m3fnuz"),
        (format_of, "no dtype", "no dtype"),
        (format_of_element_type, "i32", "'i32'.*f8E4M3FN"),
        (format_of_element_type, None, "None"),
    ],
)
def test_unknown(find, what: object, message: str) -> None:
    with pytest.raises(UnknownFormatError, match=message):
        find(what)


@pytest.mark.parametrize("code", [-1, 16])
def test_no_such_code(code: int) -> None:
    with pytest.raises(ValueError, match="0 to 15"):
        FLOAT4_E2M1FN.decode(code)


def test_engines_name_formats() -> None:
    names = {name for chip in CHIPS.values() for name in chip.core.tensor.rates}
    packed = {name.removesuffix("_x4") for name in names if name.endswith("_x4")}
    plain = {name for name in names if not name.endswith("_x4")} - {"int8"}
    assert packed == set(MX_FORMATS)
    assert plain <= set(FORMATS)


@pytest.mark.parametrize("block", gformats.all_block_formats, ids=str)
def test_blocks_are_gfloats(block: gfloat.BlockFormatInfo) -> None:
    by_name = {mx.name: mx for mx in MX_FORMATS.values()}
    if block.name not in by_name:
        assert block.name in {"mxfp6_e3m2", "mxfp6_e2m3", "mxint8"}, "not formats of the chip"
        return
    mx = by_name[block.name]
    assert (mx.block, mx.block_bits) == (block.k, 8 * block.block_size_bytes)
    assert GFLOAT[mx.element.name] is block.etype
    assert GFLOAT[mx.scale.name] is block.stype
