"""FP32 inputs that make rounding go wrong, and the independent references for the results."""

from __future__ import annotations

from functools import cache

import gfloat
import numpy as np
from gfloat import formats as gformats

from neuronjax.formats import FORMATS, Format

NARROW = [form for form in FORMATS.values() if form.mantissa_bits < 23]
"""Every format but FP32 itself."""

WITH_DTYPE = [form for form in NARROW if form.dtype is not None]

GFLOAT_DTYPES = {
    "float32": gformats.format_info_binary32,
    "bfloat16": gformats.format_info_bfloat16,
    "float16": gformats.format_info_binary16,
    "float8_e4m3fn": gformats.format_info_ocp_e4m3,
    "float8_e5m2": gformats.format_info_ocp_e5m2,
    "float8_e8m0fnu": gformats.format_info_ocp_e8m0,
    "float4_e2m1fn": gformats.format_info_ocp_e2m1,
}


def _ieee(name: str, bits: int, precision: int) -> gfloat.FormatInfo:
    """An IEEE-like format in gfloat's terms: `precision` counts the leading one."""
    return gfloat.FormatInfo(
        name,
        bits,
        precision,
        bias=2 ** (bits - precision - 1) - 1,
        is_signed=True,
        domain=gfloat.Domain.Extended,
        has_nz=True,
        num_high_nans=2 ** (precision - 1) - 1,
        has_subnormals=True,
        is_twos_complement=False,
    )


GFLOAT = GFLOAT_DTYPES | {
    "tfloat32": _ieee("tfloat32", 19, 11),
    "float8_e4m3": _ieee("float8_e4m3", 8, 4),
    "float8_e3m4": _ieee("float8_e3m4", 8, 5),
}
"""Name of a format -> gfloat's record of it."""


@cache
def inputs(form: Format) -> np.ndarray:
    """FP32 values of both signs: in every binade, of FP32's subnormals too, each value of the
    format, each tie, and the FP32 neighbours of those; zeros, infinities, NaNs of several kinds.
    For FP32 itself, those of a format with 10 mantissa bits.
    """
    places = min(form.mantissa_bits, 10) + 1
    halves = np.arange(1 << places, dtype=np.int64) << (23 - places)
    binades = np.arange(256, dtype=np.int64) << 23
    points = (binades[:, None] + halves).ravel()
    # Ties and values of FP32's own subnormals; below a narrow format they are all of a kind.
    points = np.concatenate([points, 1 << np.arange(24), (1 << np.arange(24)) * 3 // 2])
    near = (points[:, None] + np.arange(-1, 2)).ravel()
    magnitudes = np.unique(np.clip(near, 0, 0x7FFFFFFF)).astype(np.uint32)
    return np.concatenate([magnitudes, magnitudes | np.uint32(1 << 31)]).view(np.float32)


@cache
def sample(form: Format, count: int) -> np.ndarray:
    """`count` of the inputs, or all: those in reach of the format first, and the extremes."""
    values = inputs(form)
    exponents = ((values.view(np.uint32) >> 23) & 0xFF).astype(np.int32) - 127
    low = form.min_exponent - form.mantissa_bits
    is_near = (exponents >= low - 2) & (exponents <= form.max_exponent + 2)
    generator = np.random.default_rng(0)
    near, far = values[is_near], values[~is_near]
    take = min(count, len(near))
    return np.concatenate(
        [
            generator.choice(near, take, replace=False),
            generator.choice(far, min(count // 4, len(far)), replace=False),
            np.float32([0.0, -0.0, np.inf, -np.inf, np.nan]),
        ]
    )


def randoms(count: int) -> np.ndarray:
    """Random bits with the extremes among them."""
    bits = np.random.default_rng(1).integers(0, 1 << 32, count, dtype=np.uint32)
    bits[::7], bits[1::11] = 0, 0xFFFFFFFF
    return bits


def assert_same(found: np.ndarray, expected: np.ndarray, given: np.ndarray) -> None:
    """Equal bit by bit, signs of zeros too; any NaN equals any."""
    found, expected = np.asarray(found, np.float32), np.asarray(expected, np.float32)
    differ = (found.view(np.uint32) != expected.view(np.uint32)) & ~(
        np.isnan(found) & np.isnan(expected)
    )
    worst = np.flatnonzero(differ)[:5]
    examples = [
        f"{float(given[i]).hex()}: {float(found[i]).hex()}, not {float(expected[i]).hex()}"
        for i in worst
    ]
    assert not differ.any(), f"{differ.sum()} of {len(differ)} differ: {examples}"
