"""Programs that break one rule each, and programs that break none.

The line of a JAX function at which the rule is broken ends in ``# refused``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.legalize.policy import DOWNCASTS, Policy

X = np.ones((8, 16), np.float32)
NUMBERS = np.arange(8, dtype=np.int32)
KEY = np.arange(4, dtype=np.uint32)
IMAGE = np.ones((1, 4, 4, 1), np.float32)
KERNEL = np.ones((3, 3, 1, 1), np.float32)
FORBIDDEN = Policy(integer_downcasts=frozenset())
"""``--implicit-integer-downcast=none``."""


@dataclass(frozen=True)
class Case:
    """A program and the one rule (``Rule.what``) that it is made to break."""

    what: str
    code: str
    program: Callable[..., Any] | str
    """A JAX function, or StableHLO text."""
    args: tuple[Any, ...] = (X,)
    policy: Policy = field(default_factory=Policy)
    x64: bool = False
    runs: bool = True
    """Whether XLA for the CPU computes it."""
    survives: bool = True
    """Whether XLA's partitioner leaves it as it is."""

    @property
    def line(self) -> int:
        """The number of the line marked in the source of the function."""
        lines, first = inspect.getsourcelines(self.program)
        (marked,) = (n for n, line in enumerate(lines) if line.rstrip().endswith("# refused"))
        return first + marked

    @property
    def file(self) -> str:
        return inspect.getsourcefile(self.program)

    def __str__(self) -> str:
        return f"{self.code} {self.what}"


def key_of(data: jax.Array, impl: str = "rbg") -> jax.Array:
    return jax.random.wrap_key_data(data, impl=impl)


# Operators


def cholesky(x):
    return jnp.linalg.cholesky(x @ x.T + 16 * jnp.eye(8))  # refused


def fft(x):
    return jnp.fft.fft(x).real  # refused


def reduce_precision(x):
    return lax.reduce_precision(x, 5, 2)  # refused


def variadic_reduce(x):
    def both(a, b):
        return a[0] + b[0], a[1] * b[1]

    return lax.reduce((x, x), (0.0, 1.0), both, (0, 1))  # refused


def sort_by_two_keys(x):
    return lax.sort((x, -x), num_keys=2)  # refused


def sort(x):
    return jnp.sort(x)  # refused


DYNAMIC_SHAPE = """
func.func @main(%arg0: tensor<?xf32>) -> tensor<?xf32> {
  %0 = stablehlo.add %arg0, %arg0 : tensor<?xf32>
  return %0 : tensor<?xf32>
}
"""

INFEED = """
func.func @main() -> tensor<4xf32> {
  %token = stablehlo.create_token : !stablehlo.token
  %0:2 = "stablehlo.infeed"(%token) <{infeed_config = ""}>
      : (!stablehlo.token) -> (tensor<4xf32>, !stablehlo.token)
  return %0#0 : tensor<4xf32>
}
"""


# Control flow


def cond(x):
    return lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x)  # refused


def while_loop(x):
    return lax.while_loop(lambda c: c.sum() < 1000, lambda c: c * 2, x)  # refused


# Custom calls


def unknown_custom_call(x):
    call = jax.ffi.ffi_call("nobody_knows_this", jax.ShapeDtypeStruct(x.shape, x.dtype))
    return call(x)  # refused


def callback(x):
    return jax.pure_callback(np.asarray, jax.ShapeDtypeStruct(x.shape, x.dtype), x)  # refused


def integer_top_k(numbers):
    return lax.top_k(numbers, 2)  # refused


def long_top_k(x):
    flat = jnp.tile(x.reshape(-1), 256)
    return lax.top_k(flat, 16385)  # refused


# Types


def complex_numbers(x):
    return abs(lax.complex(x, x))  # refused


def float64(x):
    return x.astype(jnp.float64) + 1  # refused


def fnuz(x):
    return x.astype(jnp.float8_e4m3fnuz)  # refused


def e3m4(x):
    return x.astype(jnp.float8_e3m4)  # refused


def e8m0fnu(x):
    return x.astype(jnp.float8_e8m0fnu)  # refused


def e5m2(x):
    return x.astype(jnp.float8_e5m2)  # refused


def e4m3fn(x):
    return x.astype(jnp.float8_e4m3fn)  # refused


def e4m3(x):
    return x.astype(jnp.float8_e4m3)  # refused


def large_uint64(x):
    return x.astype(jnp.uint64) + jnp.uint64(5_000_000_000)  # refused


def int64(x):
    return x.astype(jnp.int64) * 1000  # refused


# Windows and shifts

NHWC = ("NHWC", "HWIO", "NHWC")
PADDING = ((2, 2), (2, 2))


def doubly_dilated_convolution(x, kernel):
    ones, twos = (1, 1), (2, 2)
    return lax.conv_general_dilated(x, kernel, ones, PADDING, twos, twos, NHWC)  # refused


def strided_dilated_convolution(x, kernel):
    ones, twos = (1, 1), (2, 2)
    return lax.conv_general_dilated(x, kernel, twos, PADDING, twos, ones, NHWC)  # refused


def base_dilation(x):
    return lax.reduce_window(  # refused
        x, -jnp.inf, lax.max, (1, 2), (1, 1), "VALID", base_dilation=(1, 2)
    )


def window_dilation(x):
    return lax.reduce_window(  # refused
        x, -jnp.inf, lax.max, (1, 2), (1, 1), "VALID", window_dilation=(1, 2)
    )


def two_windows(x):
    def both(a, b):
        return jnp.maximum(a[0], b[0]), jnp.minimum(a[1], b[1])

    ends = (-jnp.inf, jnp.inf)
    return lax.reduce_window((x, x), ends, both, (1, 2), (1, 2), "VALID")  # refused


def arithmetic_shift(numbers):
    return lax.shift_right_arithmetic(numbers.astype(jnp.int16), jnp.int16(1))  # refused


# Random numbers


def other_generator(key):
    algorithm = lax.RandomAlgorithm.RNG_THREE_FRY
    return lax.rng_bit_generator(key, (4,), algorithm=algorithm)[1]  # refused


def threefry(key):
    return jax.random.normal(key_of(key[:2], "threefry2x32"), (4,))  # refused


def randint(key):
    return jax.random.randint(key_of(key), (4,), 0, 7)  # refused


# Integers


def integer_dot(numbers):
    return numbers @ numbers  # refused


def small_integer_dot(numbers):
    return numbers.astype(jnp.int8) @ numbers.astype(jnp.int8)  # refused


def integer_scatter_add(numbers):
    return numbers.at[jnp.array([1, 1])].add(1)  # refused


def small_integer_scatter_add(numbers):
    return numbers.astype(jnp.int8).at[jnp.array([1, 1])].add(1)  # refused


def integer_psum(numbers):
    return lax.psum(numbers, "core")  # refused


def integer_psum_scatter(numbers):
    return lax.psum_scatter(numbers, "core")  # refused


LONG_POWER = """
func.func @main(%arg0: tensor<4xi64>) -> tensor<4xi64> {
  %0 = stablehlo.power %arg0, %arg0 : tensor<4xi64>
  return %0 : tensor<4xi64>
}
"""


def dot_algorithm(x):
    return lax.dot(x, x.T, precision=lax.DotAlgorithmPreset.F32_F32_F32)  # refused


# Indices


def gather_of_iota(x):
    return x[jnp.arange(10)]  # refused


def scatter_to_iota(x):
    return x.at[jnp.arange(10)].set(1.0)  # refused


def gather_of_constant(x):
    return jnp.take(x, jnp.array([1, 8]), axis=0)  # refused


# Collectives


def mapped_psum(x):
    return lax.psum(x, "core")  # refused


def shifted(x):
    return lax.ppermute(x, "core", [(i, i + 1) for i in range(7)])  # refused


def turned(x):
    return lax.ppermute(x, "core", [(i, (i + 1) % 8) for i in range(8)])  # refused


# MX blocks


def quantize(
    config: str = '"{\\"dtype\\": \\"float8_e5m2\\", \\"dim\\": -1}"',
    operands: str = "%x",
    input_type: str = "tensor<4x64xbf16>",
    results: str = "(tensor<4x16xui32>, tensor<4x2xui8>)",
) -> str:
    """A module with one QuantizeMX."""
    types = ", ".join([input_type] * operands.count("%"))
    return f"""
func.func @main(%x: {input_type}) {{
  %0:{results.count("tensor")} = "stablehlo.custom_call"({operands})
      <{{call_target_name = "QuantizeMX", backend_config = {config}}}> : ({types}) -> {results}
  return
}}
"""


def mx_config(**fields: Any) -> str:
    """A backend_config with these fields beside those that are right."""
    known: dict[str, Any] = {"dtype": "float8_e5m2", "dim": -1} | fields
    pairs = [
        f'\\"{name}\\": ' + (f'\\"{value}\\"' if isinstance(value, str) else str(value))
        for name, value in known.items()
    ]
    return '"{' + ", ".join(pairs) + '}"'


def scaled_matmul(
    config: str = "{}",
    lhs: str = "tensor<2x4x16xui32>",
    rhs: str = "tensor<2x8x16xui32>",
    result: str = "tensor<2x4x8xf32>",
    count: int = 4,
) -> str:
    """A module with one __op$block_scaled_dot."""
    scale = "tensor<2x4x2xui8>"
    types = [lhs, rhs, scale, scale]
    arguments = ", ".join(f"%{name}: {type_}" for name, type_ in zip("abcd", types, strict=True))
    operands = ", ".join(f"%{name}" for name in "abcd"[:count])
    inner = config.replace('"', '\\"')
    text = f'"{{\\"scaled_dot_backend_config\\": {inner}}}"'
    return f"""
func.func @main({arguments}) -> {result} {{
  %0 = "stablehlo.custom_call"({operands})
      <{{call_target_name = "__op$block_scaled_dot", backend_config = {text}}}>
      : ({", ".join(types[:count])}) -> {result}
  return %0 : {result}
}}
"""


BATCHED = '{"lhs_batch_dimensions": [0], "rhs_batch_dimensions": [0]}'

_OLD = Policy(sdk=(2, 28))
_TRN1 = Policy(chip="trainium1", core_version=2)

CASES = (
    Case("dynamic shapes", "EMOD025", DYNAMIC_SHAPE),
    Case("linear algebra (cholesky, triangular solve, LAPACK routines)", "EVRF001", cholesky),
    Case("FFT", "EVRF001", fft),
    Case("infeed, outfeed and host transfers", "EVRF001", INFEED),
    Case("reduce_precision", "EVRF001", reduce_precision),
    Case("reductions of several operands", "EVRF001", variadic_reduce),
    Case("sort comparators other than LE, GE, LT and GT", "EVRF001", sort_by_two_keys),
    Case("sort on Trn2 and later", "EVRF029", sort),
    Case("lax.cond and lax.switch", "EVRF001", cond),
    Case("loops with an unknown number of steps", "EVRF001", while_loop),
    Case("custom calls the compiler does not know", "EVRF015", unknown_custom_call, runs=False),
    Case("host callbacks (jax.debug, pure_callback, io_callback)", "EVRF015", callback),
    Case("top-k of integers", "EVRF013", integer_top_k, (NUMBERS,)),
    Case("top-k with k beyond 16384", "EVRF014", long_top_k),
    Case("complex numbers", "EVRF004", complex_numbers, policy=_OLD),
    Case("types without code generation", "ESPP004", float64, x64=True),
    Case("FP8 types of the FNUZ family", "EVRF005", fnuz),
    Case("FP8 types other than e4m3 and e5m2", "ESPP047", e3m4),
    Case("scales of MX blocks (float8_e8m0fnu) before Trn3", "ESPP047", e8m0fnu),
    Case("FP8 on Inf1", "ESPP047", e5m2, policy=Policy(chip="inferentia1", core_version=1)),
    Case("float8_e4m3fn before Trn3, before SDK 2.31", "ESPP047", e4m3fn, policy=_OLD),
    Case("float8_e4m3fn before Trn3", "EVRF051", e4m3fn),
    Case("float8_e4m3 after Trn3", "EVRF052", e4m3, policy=Policy(core_version=5)),
    Case("uint64 constants beyond 32 bits", "ESFH002", large_uint64, x64=True),
    Case("64-bit integers in 32 bits", "JAX_INT64", int64, x64=True),
    Case(
        "convolutions with input and kernel dilation",
        "EVRF010",
        doubly_dilated_convolution,
        (IMAGE, KERNEL),
    ),
    Case(
        "strided convolutions of dilated input",
        "EVRF011",
        strided_dilated_convolution,
        (IMAGE, KERNEL),
    ),
    Case("reduce-windows with base dilation", "EVRF017", base_dilation),
    Case("reduce-windows with window dilation", "EVRF018", window_dilation),
    Case("reduce-windows of several operands", "EVRF019", two_windows),
    Case(
        "arithmetic right shifts of types other than 32 bits",
        "EVRF022",
        arithmetic_shift,
        (NUMBERS,),
    ),
    Case("random bit generators other than RNG_DEFAULT", "EVRF006", other_generator, (KEY,)),
    Case("the Threefry generator", "JAX_THREEFRY", threefry, (KEY,)),
    Case("jax.random.randint", "JAX_RANDINT", randint, (KEY,)),
    Case(
        "integer matrix products, where FP32 is forbidden",
        "EVRF035",
        integer_dot,
        (NUMBERS,),
        FORBIDDEN,
    ),
    Case("integer matrix products in FP32", "JAX_INT_DOT", integer_dot, (NUMBERS,)),
    Case(
        "matrix products of integers of less than 32 bits",
        "JAX_SMALL_INT_DOT",
        small_integer_dot,
        (NUMBERS,),
    ),
    Case(
        "scatters that compute with integers or booleans, before SDK 2.32",
        "EVRF016",
        integer_scatter_add,
        (NUMBERS,),
        Policy(sdk=(2, 31)),
    ),
    Case(
        "scatters that compute with booleans or integers of less than 32 bits",
        "EVRF016",
        small_integer_scatter_add,
        (NUMBERS,),
    ),
    Case(
        "scatters that compute with integers, where FP32 is forbidden",
        "EVRF060",
        integer_scatter_add,
        (NUMBERS,),
        FORBIDDEN,
    ),
    Case(
        "scatters that compute with integers in FP32",
        "JAX_INT_SCATTER",
        integer_scatter_add,
        (NUMBERS,),
    ),
    Case(
        "powers of 64-bit integers, where 32 bits are forbidden",
        "EVRF062",
        LONG_POWER,
        policy=FORBIDDEN,
    ),
    Case(
        "precision algorithms of matrix products",
        "JAX_DOT_ALGORITHM",
        dot_algorithm,
        survives=False,
    ),
    Case("gathers with an iota out of bounds", "EVRF056", gather_of_iota),
    Case("scatters with an iota out of bounds", "EVRF031", scatter_to_iota),
    Case("gathers and scatters with a constant out of bounds", "ESMP002", gather_of_constant),
    Case(
        "indices out of bounds, before SDK 2.29",
        "RT_OUT_OF_BOUNDS",
        gather_of_constant,
        policy=_OLD,
    ),
    Case("QuantizeMX: backend_config", "EVRF036", quantize('"no json"')),
    Case("QuantizeMX: operands", "EVRF037", quantize(operands="%x, %x")),
    Case("QuantizeMX: dimension", "EVRF038", quantize(mx_config(dim=2))),
    Case("QuantizeMX: block size", "EVRF039", quantize(mx_config(block_size=16))),
    Case("QuantizeMX: scale method", "EVRF040", quantize(mx_config(scale_method="MEAN"))),
    Case("QuantizeMX: input type", "EVRF041", quantize(input_type="tensor<4x64xf32>")),
    Case("QuantizeMX: form", "EVRF042", quantize(mx_config(dtype="float8_e4m3"))),
    Case("QuantizeMX: float8_e4m3fn", "EVRF051", quantize(mx_config(dtype="float8_e4m3fn"))),
    Case("QuantizeMX: results", "EVRF057", quantize(results="tensor<4x16xui32>")),
    Case(
        "QuantizeMX: size",
        "EVRF058",
        quantize(input_type="tensor<4x30xbf16>", results="(tensor<4x7xui32>, tensor<4x1xui8>)"),
    ),
    Case("ScaledMatmul: operands", "EVRF043", scaled_matmul(count=3)),
    Case("ScaledMatmul: left-hand type", "EVRF044", scaled_matmul(lhs="tensor<2x4x16xf8E5M2>")),
    Case("ScaledMatmul: result type", "EVRF045", scaled_matmul(result="tensor<2x4x8xf16>")),
    Case("ScaledMatmul: left-hand rank", "EVRF046", scaled_matmul(lhs="tensor<16xui32>")),
    Case("ScaledMatmul: right-hand rank", "EVRF047", scaled_matmul(rhs="tensor<16xui32>")),
    Case("ScaledMatmul: batch", "EVRF048", scaled_matmul(BATCHED, rhs="tensor<3x8x16xui32>")),
    Case(
        "ScaledMatmul: backend_config",
        "EVRF049",
        scaled_matmul('{"lhs_batch_dimensions": ["first"]}'),
    ),
    Case("ScaledMatmul: contracting sizes", "EVRF050", scaled_matmul(rhs="tensor<2x8x8xui32>")),
    Case("ScaledMatmul: overlap", "EVRF053", scaled_matmul('{"lhs_batch_dimensions": [2]}')),
    Case("ScaledMatmul: batch range", "EVRF054", scaled_matmul('{"lhs_batch_dimensions": [3]}')),
    Case(
        "ScaledMatmul: contracting range",
        "EVRF055",
        scaled_matmul('{"lhs_contracting_dimensions": [-1]}'),
    ),
)

MAPPED = (
    Case(
        "integer all-reduces, where FP32 is forbidden",
        "EVRF061",
        integer_psum,
        (NUMBERS,),
        Policy(integer_downcasts=frozenset(DOWNCASTS) - {"all_reduce"}),
    ),
    Case("integer all-reduces in FP32", "JAX_INT_ALL_REDUCE", integer_psum, (NUMBERS,)),
    Case(
        "integer reduce-scatters, where FP32 is forbidden",
        "EVRF063",
        integer_psum_scatter,
        (np.ones((8, 8), np.int32),),
        Policy(integer_downcasts=frozenset(DOWNCASTS) - {"reduce_scatter"}),
    ),
    Case(
        "integer reduce-scatters in FP32",
        "JAX_INT_REDUCE_SCATTER",
        integer_psum_scatter,
        (np.ones((8, 8), np.int32),),
    ),
    Case("permutes that are not circular", "RT_PERMUTE_RING", shifted),
)
"""Programs that run on eight cores as ``jax.shard_map`` over the axis ``core``."""

SCATTERED = (
    Case("collectives over cores that are not connected", "JAX_MESH", mapped_psum),
    Case("permutes between cores without a link", "RT_PERMUTE_LINKS", turned),
)
"""Programs on eight cores of a trn2.48xlarge that lie on chips without links between them."""
