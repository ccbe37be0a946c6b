"""Every deviation of the chip, against values that do not come from the project."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from scipy import special

from neuronjax.legalize.numerics import DEVIATIONS
from tests.legalize.chip import run, run_text

BF16, F16 = ml_dtypes.bfloat16, np.float16
E4M3, E4M3FN, E5M2 = ml_dtypes.float8_e4m3, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
FLAGS = "NEURON_CC_FLAGS"
X = np.random.default_rng(0).normal(size=(16, 64)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(64, 8)).astype(np.float32)


def tf32(x: np.ndarray) -> np.ndarray:
    """FP32 to ten mantissa bits, ties to even, by scaling: exact in FP64 for normal values."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.rint(mantissa * 2**11) / 2**11, exponent).astype(np.float32)


def rounded(dtype: Any) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: x.astype(dtype).astype(np.float32)


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


def matmul(x: Any, w: Any) -> Any:
    return x @ w


def add_ones(zeros: Any, indices: Any) -> Any:
    return zeros.at[indices].add(jnp.ones(indices.shape, zeros.dtype))


COLLECTIVE = """module @collective {{
func.func @main(%a: tensor<2x{type}>) -> tensor<{size}x{type}> {{
  %r = stablehlo.replica_id : tensor<ui32>
  %zero = stablehlo.constant dense<0> : tensor<ui32>
  %first = stablehlo.compare EQ, %r, %zero : (tensor<ui32>, tensor<ui32>) -> tensor<i1>
  %f = stablehlo.broadcast_in_dim %first, dims = [] : (tensor<i1>) -> tensor<2xi1>
  %one = stablehlo.constant dense<1{dot}> : tensor<2x{type}>
  %x = stablehlo.select %f, %a, %one : tensor<2xi1>, tensor<2x{type}>
  %y = "stablehlo.{op}"(%x) ({{
    ^bb0(%p: tensor<{type}>, %q: tensor<{type}>):
      %s = stablehlo.add %p, %q : tensor<{type}>
      stablehlo.return %s : tensor<{type}>
  }}) {{{attributes}}} : (tensor<2x{type}>) -> tensor<{size}x{type}>
  return %y : tensor<{size}x{type}> }} }}"""
"""Adds the argument of core 0 and ones of the other cores."""


def collective(op: str, element: str, cores: int) -> str:
    groups = f"replica_groups = dense<{[list(range(cores))]}> : tensor<1x{cores}xi64>"
    scatter = op == "reduce_scatter"
    return COLLECTIVE.format(
        op=op,
        type=element,
        dot=".0" if element == "bf16" else "",
        size=1 if scatter else 2,
        attributes=groups + (", scatter_dimension = 0 : i64" if scatter else ""),
    )


@dataclass
class Case:
    """A program, its settings and its value on the chip.

    ``ieee`` is the value without the deviation, where it must be another one.
    """

    deviation: str
    program: Callable[..., Any] | str
    arguments: tuple[np.ndarray, ...]
    expected: Any
    environ: dict[str, str] = field(default_factory=dict)
    ieee: Any = None
    cores: int = 1
    tolerance: Any = 0.0

    def value(self, numerics: str) -> np.ndarray:
        environ = self.environ | {"NEURONJAX_NUMERICS": numerics}
        if isinstance(self.program, str):
            return run_text(self.program, *self.arguments, cores=self.cores, **environ)
        with jax.enable_x64(any(a.dtype.itemsize == 8 for a in self.arguments)):
            return run(self.program, *self.arguments, **environ)


def dot_case(kind: str, cast: Callable[[np.ndarray], np.ndarray], **environ: str) -> Case:
    """A matmul whose operands are cast: FP64 products of the cast operands."""
    x, w = cast(X).astype(np.float64), cast(W).astype(np.float64)
    bound = 64 * 2.0**-24 * (np.abs(x) @ np.abs(w))
    flags = {FLAGS: f"--auto-cast=matmult --auto-cast-type={kind}"} if kind else {}
    ieee = X.astype(np.float64) @ W.astype(np.float64)
    return Case("auto_cast_matmult", matmul, (X, W), x @ w, flags | environ, ieee, tolerance=bound)


def bits(*values: float, dtype: Any = np.float32) -> np.ndarray:
    return np.array(values, dtype)


def bf16_steps(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """exp(x) * y - x with a rounding to bf16 after every step; the steps in FP64."""

    def step(value: np.ndarray) -> np.ndarray:
        return value.astype(np.float32).astype(BF16).astype(np.float64)

    x, y = step(x), step(y)
    return step(step(step(np.exp(x)) * y) - x)


POWER = """module @power {
func.func @main(%a: tensor<2xi64>, %b: tensor<2xi64>) -> tensor<2xi64> {
  %c = stablehlo.power %a, %b : tensor<2xi64>
  return %c : tensor<2xi64> } }"""
BIG = np.array([2**31 - 1, 2**40 + 5], np.int64)
POWERS = np.array([3000, 7], np.int64)
THREES = np.array([3, 3], np.int64)
NEAR_TIE = 2**25 + 2**17 + 1
LOWEST = np.float32(np.finfo(np.float32).min)
TINY = np.float32(1e-40)

CASES = {
    "int64": Case(
        "int64", lambda x: x + 1, (BIG,), (BIG.astype(np.int32) + np.int32(1)), ieee=BIG + 1
    ),
    "int64 native": Case(
        "int64", lambda x: x + 1, (BIG,), BIG + 1, {FLAGS: "--native-int64=enabled"}
    ),
    "int64 shift": Case(
        "int64", lambda x: x >> 33, (BIG,), BIG.astype(np.int32) >> 31, ieee=BIG >> 33
    ),
    "int64 beside FP64": Case(
        "int64",
        lambda x, y: (x * 3).astype(jnp.float32) - (y >> 1).astype(float).astype(jnp.float32),
        (BIG, BIG),
        (BIG.astype(np.int32) * np.int32(3)).astype(np.float32) - (BIG >> 1).astype(np.float32),
        ieee=(BIG * 3).astype(np.float32) - (BIG >> 1).astype(np.float32),
    ),
    "int64 moved": Case("int64", lambda x: x, (BIG,), BIG),
    "int64 moved about": Case(
        "int64",
        lambda x: jnp.concatenate([x[::-1], x])[jnp.array([3, 0])].reshape(2, 1),
        (BIG,),
        BIG[::-1][:, None][[0, 0]],
    ),
    "int64 compared": Case(
        "int64",
        lambda x: jnp.stack([x, x]) > 2**31 - 2,
        (BIG,),
        [[True, False]] * 2,
        ieee=[[True, True]] * 2,
    ),
    "int64 constant": Case(
        "int64", lambda x: x * 0 + (2**40 + 3), (BIG,), np.array([3, 3]), ieee=BIG * 0 + 2**40 + 3
    ),
    "int64 minimum": Case(
        "int64",
        lambda x: jnp.stack([x.min(), jax.lax.cummin(x)[0], jnp.argmin(x)]),
        (np.array([5, 3], np.int64),),
        [3, 5, 1],
    ),
    "int64 power": Case(
        "integer_power",
        POWER,
        (POWERS, THREES),
        (POWERS**3).astype(np.int32),
        {FLAGS: "--native-int64=enabled"},
        ieee=POWERS**3,
    ),
    "int64 power kept": Case(
        "integer_power",
        POWER,
        (POWERS, THREES),
        POWERS**3,
        {FLAGS: "--native-int64=enabled --implicit-integer-downcast=none"},
    ),
    "int32 dot": Case(
        "integer_dot",
        matmul,
        (np.array([[2**24, 1]], np.int32), np.ones((2, 1), np.int32)),
        [[np.float32(2**24) + np.float32(1)]],
        ieee=[[2**24 + 1]],
    ),
    "int32 dot kept": Case(
        "integer_dot",
        matmul,
        (np.array([[2**24, 1]], np.int32), np.ones((2, 1), np.int32)),
        [[2**24 + 1]],
        {FLAGS: "--implicit-integer-downcast=scatter,pow"},
    ),
    "int8 dot": Case(
        "integer_dot",
        matmul,
        (np.array([[100, 27]], np.int8), np.array([[2], [1]], np.int8)),
        [[127]],
        ieee=[[227 - 256]],
    ),
    "int4 dot": Case(
        "integer_dot",
        matmul,
        (np.array([[7, 7]], ml_dtypes.int4), np.array([[7], [2]], ml_dtypes.int4)),
        [[63 - 64]],
    ),
    "int8 dot on v1": Case(
        "integer_dot",
        lambda x, y: jax.lax.dot(x, y, preferred_element_type=jnp.int32),
        (np.full((1, 2048), 127, np.int8), np.full((2048, 1), 127, np.int8)),
        [[127 * 127 * 2048]],
        {"NEURONJAX_TARGET": "inf1.xlarge"},
    ),
    "int32 scatter": Case(
        "integer_scatter",
        add_ones,
        (np.array([2**24, 5], np.int32), np.array([0, 1], np.int32)),
        [np.float32(2**24) + np.float32(1), 6],
        ieee=[2**24 + 1, 6],
    ),
    "int32 all-reduce": Case(
        "integer_all_reduce",
        collective("all_reduce", "i32", 2),
        (np.array([2**24, 5], np.int32),),
        [np.float32(2**24) + np.float32(1), 6],
        ieee=[2**24 + 1, 6],
        cores=2,
    ),
    "int32 reduce-scatter": Case(
        "integer_reduce_scatter",
        collective("reduce_scatter", "i32", 2),
        (np.array([2**24, 5], np.int32),),
        [np.float32(2**24) + np.float32(1)],
        ieee=[2**24 + 1],
        cores=2,
    ),
    "bf16 operands": dot_case("bf16", rounded(BF16)),
    "fp16 operands": dot_case("fp16", rounded(F16)),
    "tf32 operands": dot_case("tf32", tf32),
    "fp8 operands": dot_case("fp8_e4m3", rounded(E4M3)),
    "v1 operands": dot_case("", rounded(BF16), NEURONJAX_TARGET="inf1.xlarge"),
    "bf16 everywhere": Case(
        "auto_cast_all",
        lambda x, y: jnp.exp(x) * y - x,
        (X[0], X[1]),
        bf16_steps(X[0], X[1]),
        {FLAGS: "--auto-cast=all"},
    ),
    "infinity on trn1": Case(
        "saturate_infinity",
        matmul,
        (bits(np.inf, 1)[None], bits(0, 2)[:, None]),
        [[2]],
        {FLAGS: "--enable-saturate-infinity", "NEURONJAX_TARGET": "trn1.2xlarge"},
        ieee=[[np.nan]],
    ),
    "infinity on trn2": Case(
        "saturate_infinity",
        matmul,
        (bits(np.inf, 1)[None], bits(0, 2)[:, None]),
        [[np.nan]],
        {FLAGS: "--enable-saturate-infinity"},
    ),
    "bf16 dot": Case(
        "matmul_accumulation",
        matmul,
        (np.ones((1, 300), BF16), np.ones((300, 1), BF16)),
        [[300]],
    ),
    "fp8 dot": Case(
        "matmul_accumulation",
        lambda x, y: jax.lax.dot(x, y, preferred_element_type=jnp.bfloat16),
        (np.full((1, 64), 1.125, E4M3), np.full((64, 1), 240, E5M2)),
        [[float(np.float32(64 * 1.125 * 256).astype(BF16))]],
    ),
    "bf16 all-reduce": Case(
        "collective_accumulation",
        collective("all_reduce", "bf16", 8),
        (bits(256, 1, dtype=BF16),),
        [float(np.float32(256 + 7).astype(BF16)), 8],
        cores=8,
    ),
    "bf16 sum": Case(
        "reduction_accumulation",
        lambda x: jax.lax.reduce(x, BF16(0), jax.lax.add, (0,)),
        (np.array([256, 1, 1], BF16),),
        258,
    ),
    "bf16 sum in bf16": Case(
        "reduction_accumulation",
        lambda x: jax.lax.reduce(x, BF16(0), jax.lax.add, (0,)),
        (np.array([256, 1, 1], BF16),),
        float(BF16(256) + BF16(1) + BF16(1)),
        {FLAGS: "--disable-mixed-precision-accumulation"},
    ),
    "bf16 scatter": Case(
        "scatter_accumulation",
        add_ones,
        (np.zeros(2, BF16), np.zeros(300, np.int32)),
        [300, 0],
        ieee=[256, 0],
    ),
    "bf16 logistic": Case(
        "activation_functions",
        lambda x: 1 / (jnp.exp(-x) + 1),
        (X[0].astype(BF16),),
        (1 / (1 + np.exp(-X[0].astype(BF16).astype(np.float64)))).astype(BF16),
    ),
    "bf16 gelu": Case(
        "activation_functions",
        jax.nn.gelu,
        (X[0].astype(BF16),),
        gelu(X[0].astype(BF16).astype(np.float64)).astype(BF16),
    ),
    "bf16 exact gelu": Case(
        "activation_functions",
        lambda x: jax.nn.gelu(x, approximate=False),
        (X[0].astype(BF16),),
        (lambda x: x * special.ndtr(x))(X[0].astype(BF16).astype(np.float64)).astype(BF16),
    ),
    "bf16 arithmetic": Case(
        "narrow_arithmetic",
        lambda x, y: jnp.exp(x) * y - x,
        (X[0].astype(BF16), X[1].astype(BF16)),
        bf16_steps(X[0], X[1]),
    ),
    "fp16 arithmetic": Case(
        "narrow_arithmetic",
        lambda x, y: x * y + x,
        (X[0].astype(F16), X[1].astype(F16)),
        X[0].astype(F16) * X[1].astype(F16) + X[0].astype(F16),
    ),
    "fp8 arithmetic": Case(
        "narrow_arithmetic",
        lambda x, y: x * y + x,
        (X[0].astype(E4M3), X[1].astype(E4M3)),
        X[0].astype(E4M3) * X[1].astype(E4M3) + X[0].astype(E4M3),
    ),
    "product and sum": Case(
        "separate_rounding",
        lambda x, y, z: x * y - z.reshape(-1),
        (X[0], X[1], X[2].reshape(8, 8)),
        X[0] * X[1] - X[2],
    ),
    "moved product and sum": Case(
        "separate_rounding",
        lambda x, y, z: jnp.broadcast_to(-(x * y).reshape(8, 8)[None], (2, 8, 8)) + z,
        (X[0], X[1], X[2:4].reshape(2, 8, 8)),
        X[2:4].reshape(2, 8, 8) - (X[0] * X[1]).reshape(8, 8),
    ),
    "int to bf16": Case(
        "casts_through_fp32",
        lambda x: x.astype(jnp.bfloat16),
        (np.array([NEAR_TIE], np.int32),),
        [float(np.float32(NEAR_TIE).astype(BF16))],
    ),
    **{
        f"lowest to {np.dtype(dtype).name}": Case(
            "casts_through_fp32",
            lambda x, dtype=dtype: x.astype(dtype),
            (bits(LOWEST),),
            [-np.inf],
        )
        for dtype in (BF16, F16, E5M2, E4M3)
    },
    "e4m3fn on trn2": Case(
        "fp8_e4m3fn_as_e4m3",
        lambda x: x.astype(E4M3FN).astype(jnp.float32),
        (bits(300, 232),),
        [np.inf, float(np.float32(232).astype(E4M3))],
        {FLAGS: "--experimental-unsafe-fp8e4m3fn-as-fp8e4m3"},
        ieee=[float(np.float32(300).astype(E4M3FN)), float(np.float32(232).astype(E4M3FN))],
    ),
    "e4m3fn on trn3": Case(
        "fp8_e4m3fn_as_e4m3",
        lambda x: x.astype(E4M3FN).astype(jnp.float32),
        (bits(300),),
        [float(np.float32(300).astype(E4M3FN))],
        {
            FLAGS: "--experimental-unsafe-fp8e4m3fn-as-fp8e4m3",
            "NEURONJAX_TARGET": "trn3-gen1-ultraserver",
        },
    ),
    "subnormal fp32": Case(
        "flush_subnormals",
        lambda x, y: x * y,
        (bits(1e-30, 1e-30, 2), bits(1e-10, -1e-10, 3)),
        [0.0, -0.0, 6],
        {"NEURONJAX_FLUSH_SUBNORMALS": "1"},
    ),
    "subnormal fp16": Case(
        "flush_subnormals",
        lambda x: x.astype(jnp.float16),
        (bits(6e-6, -6e-6, 7e-5),),
        [0.0, -0.0, float(np.float16(7e-5))],
        {"NEURONJAX_FLUSH_SUBNORMALS": "1"},
        ieee=[float(np.float16(6e-6)), float(np.float16(-6e-6)), float(np.float16(7e-5))],
    ),
    "exact values": Case(
        "stochastic_rounding",
        lambda x: x.astype(jnp.bfloat16),
        (bits(1, -2.5, 0, np.inf, np.nan, LOWEST),),
        [1, -2.5, 0, np.inf, np.nan, -np.inf],
        {"NEURON_RT_STOCHASTIC_ROUNDING_EN": "1"},
    ),
}


def test_every_deviation_has_a_case() -> None:
    assert {deviation.name for deviation in DEVIATIONS} == {c.deviation for c in CASES.values()}
    assert all(deviation.source for deviation in DEVIATIONS)


def assert_equal(value: np.ndarray, expected: Any, tolerance: Any) -> None:
    """Equal within a tolerance where finite; NaN is NaN, infinities and zeros have their sign."""
    value, expected = value.astype(np.float64), np.asarray(expected, np.float64)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(value[~finite], expected[~finite])
    error = np.abs(value[finite] - expected[finite])
    assert (error <= np.broadcast_to(tolerance, expected.shape)[finite]).all()
    np.testing.assert_array_equal(np.signbit(value[finite]), np.signbit(expected[finite]))


@pytest.mark.parametrize("name", CASES)
def test_chip(name: str) -> None:
    case = CASES[name]
    assert_equal(case.value("chip"), case.expected, case.tolerance)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.ieee is not None])
def test_ieee(name: str) -> None:
    """The same program without the deviation, so that the case above can fail."""
    case = CASES[name]
    assert_equal(case.value("ieee"), case.ieee, case.tolerance)
    with pytest.raises(AssertionError):
        assert_equal(case.value("ieee"), case.expected, case.tolerance)
