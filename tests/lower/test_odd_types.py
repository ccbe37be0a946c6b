"""Operations on types that engines have no arithmetic for, against XLA:CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from neuronjax.program.verify import verify
from tests.lower.differential import SUM, check, emulated, host_operations, lowered, on_cpu

RNG = np.random.default_rng(0)
TYPES = [
    np.dtype(name)
    for name in (
        "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "bfloat16",
        "float32", "float8_e4m3fn", "float8_e5m2", "float8_e4m3",
    )
]  # fmt: skip
PACKED = [np.dtype(getattr(ml_dtypes, name)) for name in ("int2", "uint2", "int4", "uint4")]


def _values(dtype: np.dtype) -> np.ndarray:
    if dtype == np.bool_:
        return RNG.integers(0, 2, (6, 13)).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return RNG.integers(info.min, info.max, (6, 13), dtype=np.int64).astype(dtype)
    return (3 * RNG.standard_normal((6, 13))).astype(dtype)


def _check(function: object, *arguments: np.ndarray) -> None:
    assert verify(check(function, *arguments)) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: dtype.name)
def test_selections(dtype: np.dtype) -> None:
    _check(
        lambda a, b, c: (
            lax.clamp(jnp.minimum(a, b), c, jnp.maximum(a, b)),
            lax.clamp(a[0, 0], a, a[0, 0]),
            lax.clamp(a.dtype.type(0), a, a.dtype.type(1)),
            jnp.where(a == b, b, c),
            lax.select(a[0, 0] == a[0, 0], a, b),
        ),
        *(_values(dtype) for _ in range(3)),
    )


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: dtype.name)
def test_orders(dtype: np.dtype) -> None:
    _check(
        lambda a: (
            lax.sort(a, dimension=1),
            jnp.argsort(a, axis=0),
            lax.reduce(a, a.dtype.type(0), lambda x, y: y, (1,)),
            jnp.cumsum(a, 1, dtype=np.int32) if a.dtype.kind in "iub" else a,
        ),
        _values(dtype),
    )


@pytest.mark.parametrize("packed", PACKED[2:], ids=lambda dtype: dtype.name)
def test_products_wrap_before_they_are_used(packed: np.dtype) -> None:
    info = ml_dtypes.iinfo(packed)
    a, b = RNG.integers(int(info.min), int(info.max), (2, 9, 9), endpoint=True).astype(np.int32)

    def choose(a: jax.Array, b: jax.Array) -> tuple[jax.Array, ...]:
        a, b = a.astype(packed), b.astype(packed)
        pairs, sums = jnp.einsum("ij,ij->ji", a, b), a @ b
        three = jnp.array(3, packed)
        chosen = jnp.where(pairs >= three, three, pairs), jnp.where(sums >= three, three, sums)
        return tuple(each.astype(np.int32) for each in chosen)

    _check(choose, a, b)


@pytest.mark.parametrize("packed", PACKED, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "float32", "bfloat16"])
def test_conversions(packed: np.dtype, dtype: str) -> None:
    info = ml_dtypes.iinfo(packed)
    values = RNG.integers(int(info.min), int(info.max), (4, 9), endpoint=True).astype(dtype)
    _check(
        lambda a: (
            a.astype(packed).astype(dtype),
            (a.astype(packed) + a.astype(packed)).astype(np.int32),
            jnp.maximum(a.astype(packed), a[::-1].astype(packed)).astype(dtype),
        ),
        values,
    )


@pytest.mark.parametrize("packed", PACKED, ids=lambda dtype: dtype.name)
def test_constants(packed: np.dtype) -> None:
    info = ml_dtypes.iinfo(packed)
    table = np.array([int(info.min), 1, int(info.max)]).astype(packed)
    _check(lambda a: (jnp.array(table).astype(np.int32) + a, table), np.arange(3, dtype=np.int32))


NORMS = """
module @norms {
func.func public @main(%x: tensor<4x5x3xf32>, %s: tensor<3xf32>, %o: tensor<3xf32>,
    %g: tensor<4x5x3xf32>)
    -> (tensor<4x5x3xf32>, tensor<4x5x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<4x5x3xf32>,
        tensor<3xf32>, tensor<3xf32>, tensor<4x5x3xf32>) {
  %0:3 = "stablehlo.batch_norm_training"(%x, %s, %o)
    {epsilon = 0.01 : f32, feature_index = 2 : i64}
    : (tensor<4x5x3xf32>, tensor<3xf32>, tensor<3xf32>)
    -> (tensor<4x5x3xf32>, tensor<3xf32>, tensor<3xf32>)
  %1 = "stablehlo.batch_norm_inference"(%x, %s, %o, %0#1, %0#2)
    {epsilon = 0.01 : f32, feature_index = 2 : i64}
    : (tensor<4x5x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>)
    -> tensor<4x5x3xf32>
  %2:3 = "stablehlo.batch_norm_grad"(%x, %s, %0#1, %0#2, %g)
    {epsilon = 0.01 : f32, feature_index = 2 : i64}
    : (tensor<4x5x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<4x5x3xf32>)
    -> (tensor<4x5x3xf32>, tensor<3xf32>, tensor<3xf32>)
  %3 = "stablehlo.map"(%x, %g) <{dimensions = array<i64: 0, 1, 2>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.constant dense<2.0> : tensor<f32>
      %d = stablehlo.multiply %a, %c : tensor<f32>
      %e = stablehlo.maximum %d, %b : tensor<f32>
      stablehlo.return %e : tensor<f32>
  }) : (tensor<4x5x3xf32>, tensor<4x5x3xf32>) -> tensor<4x5x3xf32>
  return %0#0, %1, %0#1, %0#2, %2#0, %2#1, %2#2, %3
    : tensor<4x5x3xf32>, tensor<4x5x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<4x5x3xf32>,
      tensor<3xf32>, tensor<3xf32>, tensor<4x5x3xf32>
}
}
"""


def test_norms_and_maps() -> None:
    arguments = [RNG.standard_normal(s).astype(np.float32) for s in ((4, 5, 3), 3, 3, (4, 5, 3))]
    program = lowered(NORMS.encode())
    assert verify(program) == ()
    (found,) = emulated(program, NORMS.encode(), [arguments])
    for got, want in zip(found, on_cpu(NORMS.encode(), arguments), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_what_no_engine_has_is_left_to_the_host() -> None:
    with jax.enable_x64(True):
        values = (RNG.standard_normal((4, 6)) + 1j).astype(np.complex64)
        program = check(
            lambda a: (
                lax.reduce_window(a, np.complex64(0), lax.add, (2, 2), (1, 1), "SAME"),
                lax.reduce(a, np.complex64(1), lax.mul, (1,)),
                jnp.sort(a.real.astype(np.float64), 1),
                lax.reduce_precision(a.real.astype(np.float64), 5, 10),
                jnp.cumsum(a.imag, 0),
                lax.exp2(a),
            ),
            values,
            tolerance=SUM,
            host=True,
        )
    assert host_operations(program)


@pytest.mark.parametrize("exponent", [0.5, -0.5, 2.0, -3.0])
def test_powers_of_what_is_no_number_to_take_a_root_of(exponent: float) -> None:
    """A power of one half is no square root where that has a sign, or is no number."""
    edges = np.array([-np.inf, -0.0, 0.0, np.inf, np.nan, 4.0, -4.0], np.float32)
    _check(lambda x: lax.pow(x, np.float32(exponent)), edges)
