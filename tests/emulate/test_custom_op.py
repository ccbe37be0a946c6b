"""`custom_op` computes what StableHLO says, with Python's integers and FP64 as the judge."""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from neuronjax.emulate.custom_functions import FLOAT, INTEGER, to_odd
from neuronjax.errors import UnsupportedProgramError
from neuronjax.program.operators import CustomFunction
from tests.emulate.single import execute

INTEGERS = ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")


def wrap(value: int, dtype: str) -> int:
    info = np.iinfo(dtype)
    return (value - info.min) % (1 << info.bits) + info.min


def divide(x: int, y: int) -> int:
    if y == 0:
        return -1
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def remainder(x: int, y: int) -> int:
    return x if y == 0 else x - y * divide(x, y)


def power(x: int, y: int) -> int:
    if y < 0:
        return {1: 1, -1: -1 if y % 2 else 1}.get(x, 0)
    return pow(x, y, 1 << 64)


def bits(x: int, dtype: str) -> str:
    return format(x % (1 << np.iinfo(dtype).bits), f"0{np.iinfo(dtype).bits}b")


def logical(x: int, y: int, dtype: str) -> int:
    width = np.iinfo(dtype).bits
    return (x % (1 << width)) >> y if 0 <= y < width else 0


def arithmetic(x: int, y: int, dtype: str) -> int:
    width = np.iinfo(dtype).bits
    signed = wrap(x, f"int{width}")
    return signed >> (y if 0 <= y < width else width - 1)


BINARY: dict[CustomFunction, Callable[[int, int, str], int]] = {
    CustomFunction.ADD: lambda x, y, _: x + y,
    CustomFunction.SUBTRACT: lambda x, y, _: x - y,
    CustomFunction.MULTIPLY: lambda x, y, _: x * y,
    CustomFunction.MULTIPLY_HIGH: lambda x, y, t: (x * y) >> np.iinfo(t).bits,
    CustomFunction.DIVIDE: lambda x, y, _: divide(x, y),
    CustomFunction.REMAINDER: lambda x, y, _: remainder(x, y),
    CustomFunction.POWER: lambda x, y, _: power(x, y),
    CustomFunction.MAXIMUM: lambda x, y, _: max(x, y),
    CustomFunction.MINIMUM: lambda x, y, _: min(x, y),
    CustomFunction.AND: lambda x, y, _: x & y,
    CustomFunction.OR: lambda x, y, _: x | y,
    CustomFunction.XOR: lambda x, y, _: x ^ y,
    CustomFunction.SHIFT_LEFT: lambda x, y, t: x << y if 0 <= y < np.iinfo(t).bits else 0,
    CustomFunction.SHIFT_RIGHT_LOGICAL: logical,
    CustomFunction.SHIFT_RIGHT_ARITHMETIC: arithmetic,
}
UNARY: dict[CustomFunction, Callable[[int, str], int]] = {
    CustomFunction.ABS: lambda x, _: abs(x),
    CustomFunction.NEGATE: lambda x, _: -x,
    CustomFunction.NOT: lambda x, _: ~x,
    CustomFunction.SIGN: lambda x, _: (x > 0) - (x < 0),
    CustomFunction.POPCNT: lambda x, t: bits(x, t).count("1"),
    CustomFunction.COUNT_LEADING_ZEROS: lambda x, t: (bits(x, t) + "1").index("1"),
    CustomFunction.CONVERT: lambda x, _: x,
}
COMPARISONS: dict[CustomFunction, Callable[[float, float], bool]] = {
    CustomFunction.COMPARE_EQ: lambda x, y: x == y,
    CustomFunction.COMPARE_NE: lambda x, y: x != y,
    CustomFunction.COMPARE_LT: lambda x, y: x < y,
    CustomFunction.COMPARE_LE: lambda x, y: x <= y,
    CustomFunction.COMPARE_GT: lambda x, y: x > y,
    CustomFunction.COMPARE_GE: lambda x, y: x >= y,
}


def operands(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of edges, and random pairs: [4, n]."""
    info, rng = np.iinfo(dtype), np.random.default_rng(3)
    edges = [info.min, info.min + 1, 0, 1, 2, 7, info.bits - 1, info.bits, info.max - 1, info.max]
    edges += [-1, -2] if info.min else [3, 100]
    more = rng.integers(info.min, info.max, (2, 100), dtype, endpoint=True)
    x = [one for one in edges for _ in edges]
    y = [other for _ in edges for other in edges]
    both = (np.concatenate([np.array(a, dtype), b]) for a, b in zip((x, y), more, strict=True))
    one, other = (each.reshape(4, -1) for each in both)
    return one, other


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("function", BINARY, ids=lambda each: each.value)
def test_binary(function: CustomFunction, dtype: str) -> None:
    x, y = operands(dtype)
    found = execute(
        f"custom_op dst={{r}} function={function.value} srcs=({{x}}, {{y}})",
        {"x": x, "y": y}, {"r": (dtype, x.shape)},
    )  # fmt: skip
    expected = [
        wrap(BINARY[function](int(a), int(b), dtype), dtype)
        for a, b in zip(x.flat, y.flat, strict=True)
    ]
    np.testing.assert_array_equal(found["r"].reshape(-1), np.array(expected, dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("function", UNARY, ids=lambda each: each.value)
def test_unary(function: CustomFunction, dtype: str) -> None:
    x, _ = operands(dtype)
    found = execute(
        f"custom_op dst={{r}} function={function.value} srcs=({{x}})",
        {"x": x}, {"r": (dtype, x.shape)},
    )  # fmt: skip
    expected = [wrap(UNARY[function](int(each), dtype), dtype) for each in x.flat]
    np.testing.assert_array_equal(found["r"].reshape(-1), np.array(expected, dtype))


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float32", "bfloat16"])
@pytest.mark.parametrize("function", COMPARISONS, ids=lambda each: each.value)
def test_comparison(function: CustomFunction, dtype: str) -> None:
    if "int" in dtype:
        x, y = operands(dtype)
    else:
        specials = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.5, 3e-39])
        pairs = np.meshgrid(specials, specials)
        x, y = (each.astype(getattr(ml_dtypes, dtype, np.float32)) for each in pairs)
    found = execute(
        f"custom_op dst={{r}} function={function.value} srcs=({{x}}, {{y}})",
        {"x": x, "y": y}, {"r": ("uint8", x.shape)},
    )  # fmt: skip
    pairs = zip(x.reshape(-1).tolist(), y.reshape(-1).tolist(), strict=True)
    assert found["r"].reshape(-1).tolist() == [COMPARISONS[function](a, b) for a, b in pairs]


FLOATS: dict[CustomFunction, Callable[..., float]] = {
    CustomFunction.ADD: lambda x, y: x + y,
    CustomFunction.SUBTRACT: lambda x, y: x - y,
    CustomFunction.MULTIPLY: lambda x, y: x * y,
    CustomFunction.DIVIDE: lambda x, y: x / y,
    CustomFunction.REMAINDER: math.fmod,
    CustomFunction.POWER: lambda x, y: abs(x) ** y,
    CustomFunction.ATAN2: math.atan2,
    CustomFunction.MAXIMUM: max,
    CustomFunction.MINIMUM: min,
    CustomFunction.ABS: abs,
    CustomFunction.NEGATE: lambda x: -x,
    CustomFunction.CBRT: math.cbrt,
    CustomFunction.CEIL: math.ceil,
    CustomFunction.FLOOR: math.floor,
    CustomFunction.COSINE: math.cos,
    CustomFunction.SINE: math.sin,
    CustomFunction.TAN: math.tan,
    CustomFunction.EXPONENTIAL_MINUS_ONE: math.expm1,
    CustomFunction.LOG_PLUS_ONE: lambda x: math.log1p(abs(x)),
    CustomFunction.ROUND_NEAREST_AFZ: lambda x: math.copysign(math.floor(abs(x) + 0.5), x),
    CustomFunction.ROUND_NEAREST_EVEN: round,
    CustomFunction.SIGN: lambda x: math.copysign(1, x),
    CustomFunction.CONVERT: lambda x: x,
}
OF_TWO = {
    CustomFunction.ADD, CustomFunction.SUBTRACT, CustomFunction.MULTIPLY, CustomFunction.DIVIDE,
    CustomFunction.REMAINDER, CustomFunction.POWER, CustomFunction.ATAN2, CustomFunction.MAXIMUM,
    CustomFunction.MINIMUM,
}  # fmt: skip
OF_MAGNITUDES = {CustomFunction.POWER, CustomFunction.LOG_PLUS_ONE}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e5m2"])
@pytest.mark.parametrize("function", FLOATS, ids=lambda each: each.value)
def test_floats_are_rounded_once(function: CustomFunction, dtype: str) -> None:
    rng = np.random.default_rng(5)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x, y = ((rng.standard_normal((4, 64)) * 3).astype(kind) for _ in "xy")
    x[0, :4] = [0.5, -0.5, 1.5, 2.5]
    y[y == 0] = 1
    if function in OF_MAGNITUDES:
        x = np.abs(x)
    two = function in OF_TWO
    found = execute(
        f"custom_op dst={{r}} function={function.value} srcs=({'{x}, {y}' if two else '{x}'})",
        {"x": x, "y": y}, {"r": (dtype, x.shape)},
    )  # fmt: skip
    pairs = zip(x.reshape(-1), y.reshape(-1), strict=True)
    exact = [FLOATS[function](*map(float, (a, b)[: 2 if two else 1])) for a, b in pairs]
    with np.errstate(over="ignore"):
        once = np.array(exact).astype(kind).reshape(x.shape)
        by_float32 = np.array(exact).astype(np.float32).astype(kind).reshape(x.shape)
    # numpy rounds to narrow types by way of float32, which may round twice. Powers and the like of
    # two libraries differ in the last bit of FP64: next to never by a step of the result.
    agree = (found["r"] == once) | (found["r"] == by_float32)
    assert agree.mean() > 0.98


SPECIAL = np.array([[np.nan, 0.0, -0.0, np.inf, -np.inf, -3.7, 300.9, 1e20, -1e20]], np.float32)
SPECIALS: list[tuple[str, str, list[float]]] = [
    ("convert", "int8", [0, 0, 0, 127, -128, -3, 127, 127, -128]),
    ("convert", "uint8", [0, 0, 0, 255, 0, 0, 255, 255, 0]),
    ("convert", "int64", [0, 0, 0, 2**63 - 1, -(2**63), -3, 300, int(np.float32(1e20)), -1]),
    ("is_finite", "uint8", [0, 1, 1, 0, 0, 1, 1, 1, 1]),
    ("sign", "float32", [np.nan, 0.0, -0.0, 1, -1, -1, 1, 1, -1]),
]


@pytest.mark.parametrize(("function", "dtype", "expected"), SPECIALS)
def test_special_values(function: str, dtype: str, expected: list[float]) -> None:
    found = execute(
        f"custom_op dst={{r}} function={function} srcs=({{x}})",
        {"x": SPECIAL}, {"r": (dtype, SPECIAL.shape)},
    )["r"][0]  # fmt: skip
    if dtype == "int64":
        expected = [*expected[:7], 2**63 - 1, -(2**63)]
    np.testing.assert_array_equal(found, np.array(expected, dtype))
    if function == "sign":
        assert np.signbit(found[2])


def test_maximum_keeps_nan() -> None:
    x, y = SPECIAL, np.ones_like(SPECIAL)
    for function in ("maximum", "minimum"):
        found = execute(
            f"custom_op dst={{r}} function={function} srcs=({{x}}, {{y}})",
            {"x": x, "y": y}, {"r": ("float32", x.shape)},
        )["r"]  # fmt: skip
        assert np.isnan(found[0, 0])
        assert not np.isnan(found[0, 1:]).any()


def test_select_and_broadcasts() -> None:
    rng = np.random.default_rng(0)
    p, x = rng.integers(0, 2, (4, 6)).astype(np.uint8), rng.integers(-9, 9, (4, 6)) << 40
    column = rng.integers(-9, 9, (4, 1)) << 40
    outputs = {"r": ("int64", (4, 6)), "q": ("int64", (4, 6))}
    found = execute(
        "custom_op dst={r} function=select srcs=({p}, {x}, #-7)\n"
        "custom_op dst={q} function=add srcs=({x}, {column})",
        {"p": p, "x": x, "column": column}, outputs,
    )  # fmt: skip
    np.testing.assert_array_equal(found["r"], np.where(p, x, -7))
    np.testing.assert_array_equal(found["q"], x + column)


def test_integers_convert_to_floats() -> None:
    x = np.array([[2**24 + 1, -(2**31), 5, 2**31 - 1]], np.int32)
    found = execute(
        "custom_op dst={r} function=convert srcs=({x})\n"
        "custom_op dst={q} function=convert srcs=({x})",
        {"x": x}, {"r": ("float32", x.shape), "q": ("bfloat16", x.shape)},
    )  # fmt: skip
    np.testing.assert_array_equal(found["r"], x.astype(np.float32))
    np.testing.assert_array_equal(found["q"], x.astype(np.float64).astype(ml_dtypes.bfloat16))


def test_every_function_is_tested() -> None:
    tested = {
        *BINARY,
        *UNARY,
        *COMPARISONS,
        *FLOATS,
        CustomFunction.SELECT,
        CustomFunction.IS_FINITE,
    }
    assert tested == set(CustomFunction) == {*INTEGER, *FLOAT}


def test_a_function_of_another_type_is_refused() -> None:
    with pytest.raises(UnsupportedProgramError, match="popcnt in float32"):
        execute(
            "custom_op dst={r} function=popcnt srcs=({x})",
            {"x": SPECIAL}, {"r": ("float32", SPECIAL.shape)},
        )  # fmt: skip


def test_rounding_to_odd_makes_a_second_rounding_right() -> None:
    # 1 + 2**-8 is halfway between two values of bfloat16; a little more must go up.
    x = np.array([1 + 2**-8 + 2**-40, 1 + 2**-8 - 2**-40, 1e300, -1e-300])
    with np.errstate(over="ignore"):
        found = to_odd(x).astype(ml_dtypes.bfloat16).astype(np.float64)
    assert found.tolist() == [1 + 2**-7, 1.0, np.inf, 0.0]
