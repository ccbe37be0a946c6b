"""MX arrays against gfloat, block by block, and against numpy in FP64."""

from __future__ import annotations

from functools import cache

import gfloat
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from gfloat.formats import format_info_mxfp4_e2m1, format_info_mxfp8_e4m3, format_info_mxfp8_e5m2
from hypothesis import given

from neuronjax import mx
from neuronjax.errors import BlockShapeError, MXOperandError, UnknownFormatError
from tests.conftest import RunPython

BLOCKS = {
    "float8_e4m3fn": format_info_mxfp8_e4m3,
    "float8_e5m2": format_info_mxfp8_e5m2,
    "float4_e2m1fn": format_info_mxfp4_e2m1,
}
RULES = [(element, "ocp") for element in BLOCKS] + [
    ("float8_e4m3fn", "neuron"),
    ("float8_e5m2", "neuron"),
]
GENERATOR = np.random.default_rng(0)


@cache
def hard_blocks() -> np.ndarray:
    """[block, 32] FP32: magnitudes alike and far apart, at both ends of FP32, zeros, ties."""
    normal = GENERATOR.standard_normal((40, 32))
    spread = normal * np.exp2(GENERATOR.integers(-140, 120, (40, 1)))
    wide = normal * np.exp2(GENERATOR.integers(-20, 20, (40, 32)))
    powers = np.exp2(GENERATOR.integers(-8, 9, (10, 32))) * GENERATOR.choice([-1, 1], (10, 32))
    ties = GENERATOR.integers(-64, 65, (40, 32)) / 2 * np.exp2(GENERATOR.integers(-9, 9, (40, 1)))
    largest = np.full((1, 32), np.finfo(np.float32).max)
    subnormal = np.arange(-16, 16)[None] * 2.0**-149
    edge = GENERATOR.integers(-1 << 22, 1 << 22, (10, 32)) * 2.0**-149
    lonely = np.zeros((2, 32))
    lonely[0, 5], lonely[1, 31] = 1e-45, -3.0
    rows = [normal, spread, wide, powers, ties, largest, subnormal, edge, lonely, np.zeros((2, 32))]
    return np.concatenate(rows).astype(np.float32)


def gfloat_scale(values: np.ndarray, block: gfloat.BlockFormatInfo, rule: str) -> float:
    emax = block.etype.emax - {"ocp": 0, "neuron": 1}[rule]
    return gfloat.compute_scale_amax(emax, values)


@cache
def gfloat_codes(element: str, rule: str) -> np.ndarray:
    """[block, 1 + 32] codes: the scale, then the elements."""
    block = BLOCKS[element]
    rows = hard_blocks().astype(np.float64)
    factors = [gfloat_scale(values, block, rule) for values in rows]
    codes = [
        list(gfloat.encode_block(block, factor, values / factor))
        for values, factor in zip(rows, factors, strict=True)
    ]
    return np.array(codes, np.uint8)


@pytest.mark.parametrize("platform", ["cpu", "neuron"])
@pytest.mark.parametrize(("element", "rule"), RULES)
def test_codes_are_gfloats(element: str, rule: str, platform: str) -> None:
    x = hard_blocks()
    with jax.default_device(jax.devices(platform)[0]):
        elements, scales = map(np.asarray, mx.quantize(x, element, scale=rule))
    assert (elements.shape, scales.shape) == (x.shape, (len(x), 1))
    found = np.concatenate([scales.view(np.uint8), elements.view(np.uint8)], axis=1)
    np.testing.assert_array_equal(found, gfloat_codes(element, rule))


@pytest.mark.parametrize("platform", ["cpu", "neuron"])
@pytest.mark.parametrize("element", BLOCKS)
def test_values_are_gfloats(element: str, platform: str) -> None:
    block = BLOCKS[element]
    x = hard_blocks()
    codes = gfloat_codes(element, "ocp").tolist()
    expected = np.array([list(gfloat.decode_block(block, code)) for code in codes])
    with jax.default_device(jax.devices(platform)[0]):
        elements, scales = mx.quantize(x, element)
        found = np.asarray(mx.dequantize(elements, scales))
    # XLA on the CPU writes zero where the product is subnormal in FP32.
    expected[np.abs(expected) < np.finfo(np.float32).smallest_normal] = 0
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("element", BLOCKS)
def test_every_scale_with_every_element(element: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, element))
    form = mx.MX_FORMATS[element].element
    values = np.arange(form.codes, dtype=np.uint8).view(dtype)
    values = np.resize(values[np.isfinite(values.astype(np.float32))], (254, 8, 32))
    scales = np.arange(254, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu)
    found = mx.dequantize(values, np.broadcast_to(scales[:, None, None], (254, 8, 1)))
    exact = values.astype(np.float64) * scales.astype(np.float64)[:, None, None]
    with np.errstate(over="ignore"):
        expected = exact.astype(np.float32)
    expected[np.abs(expected) < np.finfo(np.float32).smallest_normal] = 0
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("element", BLOCKS)
def test_what_is_not_finite_spoils_its_block_only(element: str, bad: float) -> None:
    x = np.ones((2, 64), np.float32)
    x[1, 40] = bad
    elements, scales = mx.quantize(x, element)
    found = np.asarray(mx.dequantize(elements, scales))
    np.testing.assert_array_equal(np.isnan(found), [[False] * 64, [False] * 32 + [True] * 32])
    assert np.asarray(scales).view(np.uint8)[1, 1] == 0xFF


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16])
def test_narrow_inputs_lose_nothing_before(dtype: np.dtype) -> None:
    codes = GENERATOR.integers(0, 1 << 16, (64, 32), dtype=np.uint16)
    x = codes.view(dtype)
    x = np.where(np.isfinite(x.astype(np.float32)), x, np.zeros((), dtype))
    for found, expected in zip(mx.quantize(x), mx.quantize(x.astype(np.float32)), strict=True):
        np.testing.assert_array_equal(*(np.asarray(a).view(np.uint8) for a in (found, expected)))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_any_axis(axis: int) -> None:
    x = GENERATOR.standard_normal((64, 32, 96), dtype=np.float32)
    elements, scales = mx.quantize(x, axis=axis)
    last = mx.quantize(np.moveaxis(x, axis, -1))
    for found, expected in zip((elements, scales), last, strict=True):
        np.testing.assert_array_equal(np.moveaxis(np.asarray(found), axis, -1), expected)
    np.testing.assert_array_equal(
        np.moveaxis(np.asarray(mx.dequantize(elements, scales, axis)), axis, -1),
        mx.dequantize(*last),
    )


@pytest.mark.parametrize("shape", [(0, 64), (3, 0)])
def test_empty(shape: tuple[int, ...]) -> None:
    elements, scales = mx.quantize(np.zeros(shape, np.float32))
    assert (elements.shape, scales.shape) == (shape, (shape[0], shape[1] // 32))
    assert mx.dequantize(elements, scales).shape == shape
    assert mx.unpack_x4(mx.pack_x4(elements), "float8_e4m3fn").shape == shape
    product = mx.scaled_matmul(elements, scales, elements.T, scales.T)
    np.testing.assert_array_equal(product, np.zeros((shape[0], shape[0])))


FINITE = hnp.arrays(np.float32, (2, 32), elements=st.floats(-(2.0**99), 2.0**99, width=32))
RULE = st.sampled_from(RULES)


@given(x=FINITE, rule=RULE)
def test_error_is_half_a_step_unless_saturated(x: np.ndarray, rule: tuple[str, str]) -> None:
    form = mx.MX_FORMATS[rule[0]].element
    elements, scales = mx.quantize(x, element=rule[0], scale=rule[1])
    factor = np.asarray(scales).astype(np.float64)
    scaled = x / factor
    exponent = np.maximum(np.frexp(scaled)[1] - 1, form.min_exponent)
    error = np.abs(np.asarray(elements).astype(np.float64) - scaled)
    fits = np.abs(scaled) <= form.max
    assert (error <= 0.5 * np.exp2(exponent - form.mantissa_bits))[fits].all()
    if rule[1] == "neuron":
        assert fits.all()


@given(x=FINITE, element=st.sampled_from(list(BLOCKS)))
def test_quantizing_again_changes_nothing(x: np.ndarray, element: str) -> None:
    once = mx.dequantize(*mx.quantize(x, element=element))
    np.testing.assert_array_equal(mx.dequantize(*mx.quantize(once, element=element)), once)


@given(x=FINITE, rule=RULE, power=st.integers(-8, 8))
def test_powers_of_two_go_into_the_scale(x: np.ndarray, rule: tuple[str, str], power: int) -> None:
    x = np.where(np.abs(x) < 2.0**-60, np.float32(0), x)
    x[:, 0] = 1.0
    elements, scales = mx.quantize(x, element=rule[0], scale=rule[1])
    elements_2, scales_2 = mx.quantize(x * np.float32(2.0**power), element=rule[0], scale=rule[1])
    np.testing.assert_array_equal(*(np.asarray(a).view(np.uint8) for a in (elements, elements_2)))
    codes, codes_2 = (np.asarray(a).view(np.uint8).astype(int) for a in (scales, scales_2))
    np.testing.assert_array_equal(codes + power, codes_2)


@pytest.mark.parametrize("platform", ["cpu", "neuron"])
@pytest.mark.parametrize(
    ("left", "right"),
    [("float8_e4m3fn", "float8_e4m3fn"), ("float8_e5m2", "float4_e2m1fn")],
)
@pytest.mark.parametrize(
    ("lhs_shape", "rhs_shape"), [((5, 64), (64, 7)), ((2, 1, 5, 96), (3, 96, 4))]
)
def test_product(
    lhs_shape: tuple[int, ...],
    rhs_shape: tuple[int, ...],
    left: str,
    right: str,
    platform: str,
) -> None:
    lhs = GENERATOR.standard_normal(lhs_shape, dtype=np.float32)
    rhs = GENERATOR.standard_normal(rhs_shape, dtype=np.float32)
    with jax.default_device(jax.devices(platform)[0]):
        operands = *mx.quantize(lhs, left), *mx.quantize(rhs, right, axis=-2)
        products = [mx.scaled_matmul(*operands, dtype) for dtype in (jnp.float32, jnp.bfloat16)]
    a, b = (
        np.asarray(elements).astype(np.float64)
        * np.repeat(np.asarray(scales).astype(np.float64), 32, axis=axis)
        for elements, scales, axis in ((*operands[:2], -1), (*operands[2:], -2))
    )
    expected = a @ b
    assert [product.dtype for product in products] == [jnp.float32, jnp.bfloat16]
    for product in products:
        # Each of the k additions rounds a sum that is at most that of the magnitudes.
        bound = lhs_shape[-1] * 2.0**-24 * (np.abs(a) @ np.abs(b))
        bound += np.abs(expected) * float(jnp.finfo(product.dtype).eps)
        assert (np.abs(np.asarray(product).astype(np.float64) - expected) <= bound).all()


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("element", BLOCKS)
def test_words(element: str, axis: int) -> None:
    x = GENERATOR.standard_normal((16, 64), dtype=np.float32)
    elements = np.asarray(jnp.asarray(x).astype(element))
    words = mx.pack_x4(elements, axis)
    assert words.dtype == (np.uint16 if "4_" in element else np.uint32)
    codes = np.moveaxis(elements, axis, -1).view(np.uint8).astype(np.uint32)
    quarters = np.split(codes, 4, axis=-1)
    bits = 4 if "4_" in element else 8
    expected = sum(quarter << (bits * place) for place, quarter in enumerate(quarters))
    np.testing.assert_array_equal(np.moveaxis(np.asarray(words), axis, -1), expected)
    np.testing.assert_array_equal(mx.unpack_x4(words, element, axis), elements)


def test_words_hold_what_numpy_sees_in_memory() -> None:
    """Four neighbours of the interleaved order are the bytes of a little-endian word."""
    elements, _ = mx.quantize(GENERATOR.standard_normal((3, 512), dtype=np.float32))
    neighbours = np.ascontiguousarray(mx.interleave_x4(elements))
    np.testing.assert_array_equal(mx.pack_x4(elements), neighbours.view("<u4"))
    np.testing.assert_array_equal(mx.deinterleave_x4(neighbours), elements)


def test_groups_of_the_device() -> None:
    """Scales of interleaved data belong to 8 partitions of 4 elements that lie 128 apart."""
    x = np.zeros(512, np.float32)
    for partition, part, value in ((3, 0, 8.0), (15, 2, 32.0), (127, 3, 0.5)):
        x[partition + 128 * part] = value
    _, scales = mx.quantize(mx.interleave_x4(x))
    exponents = np.asarray(scales).view(np.uint8).astype(int) - 127
    assert {group: int(e) for group, e in enumerate(exponents) if e > -127} == {
        0: -5,
        1: -3,
        15: -9,
    }


def ones(shape: tuple[int, ...], dtype: str) -> jax.Array:
    return jnp.ones(shape).astype(dtype)


FP8, SCALE = "float8_e4m3fn", "float8_e8m0fnu"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: mx.quantize(ones((2, 33), "float32")), BlockShapeError, "axis 1.*33; pad"),
        (lambda: mx.quantize(ones((), "float32")), BlockShapeError, "axis -1"),
        (lambda: mx.quantize(ones((32,), "float32"), axis=1), BlockShapeError, "axis 1"),
        (lambda: mx.quantize(ones((32,), "float32"), "float8_e4m3"), UnknownFormatError, "e4m3fn"),
        (lambda: mx.quantize(ones((32,), "int32")), MXOperandError, "int32; it takes float32"),
        (lambda: mx.quantize(ones((32,), "float32"), scale="max"), MXOperandError, "ocp, neuron"),
        (
            lambda: mx.quantize(ones((32,), "float32"), "float4_e2m1fn", scale="neuron"),
            MXOperandError,
            "scale='ocp'",
        ),
        (
            lambda: mx.dequantize(ones((64,), FP8), ones((1,), SCALE)),
            BlockShapeError,
            r"scales of shape \(2,\); these have \(1,\)",
        ),
        (
            lambda: mx.dequantize(ones((64, 32), FP8), ones((64, 1), SCALE), axis=0),
            BlockShapeError,
            r"\(2, 32\)",
        ),
        (
            lambda: mx.dequantize(ones((64,), FP8), ones((2,), "uint8")),
            MXOperandError,
            "bitcast_convert_type",
        ),
        (
            lambda: mx.dequantize(ones((64,), "float32"), ones((2,), SCALE)),
            UnknownFormatError,
            "float32",
        ),
        (
            lambda: mx.scaled_matmul(
                ones((4, 64), FP8), ones((4, 2), SCALE), ones((32, 4), FP8), ones((1, 4), SCALE)
            ),
            BlockShapeError,
            r"\(4, 64\) and \(32, 4\)",
        ),
        (
            lambda: mx.scaled_matmul(
                ones((32,), FP8), ones((1,), SCALE), ones((32,), FP8), ones((1,), SCALE)
            ),
            BlockShapeError,
            r"\[..., m, k\]",
        ),
        (
            lambda: mx.scaled_matmul(
                *mx.quantize(ones((4, 32), "float32")),
                *mx.quantize(ones((32, 4), "float32"), axis=0),
                preferred_element_type=jnp.float16,
            ),
            MXOperandError,
            "float16; it gives one of float32, bfloat16",
        ),
        (lambda: mx.pack_x4(ones((30,), FP8)), BlockShapeError, "30; pad"),
        (lambda: mx.pack_x4(ones((32,), "uint8")), UnknownFormatError, "uint8"),
        (lambda: mx.unpack_x4(ones((8,), "uint16"), FP8), MXOperandError, "uint32.*uint16"),
        (lambda: mx.unpack_x4(ones((8,), "uint32"), "fp8"), UnknownFormatError, "'fp8'"),
        (lambda: mx.interleave_x4(ones((6,), "float32")), BlockShapeError, "6; pad"),
    ],
)
def test_clear_errors(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_public_without_an_import(start_python: RunPython) -> None:
    done = start_python(
        """
        import sys
        import neuronjax
        assert "jax" not in sys.modules
        print(neuronjax.mx.quantize.__module__, sorted({"mx"} & set(neuronjax.__all__)))
        """
    )
    assert (done.stdout, done.stderr) == ("neuronjax.mx ['mx']\n", "")
