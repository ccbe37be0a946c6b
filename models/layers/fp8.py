"""Matmuls in FP8 with scaling per tensor, for training and inference.

Operands are scaled so that they fill the range of the format, and rounded; products are summed in
FP32 and scaled back. Activations and weights take an E4M3 format, gradients E5M2, whose range is
wider (Micikevicius et al., "FP8 Formats for Deep Learning", 2022). The scale is that of the tensor
at hand ("current scaling"), so there is no state to keep.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

GRADIENT_DTYPE = jnp.float8_e5m2
DTYPES = ("float8_e4m3", "float8_e4m3fn")
"""Formats of the operands: Trainium1 and 2 have the first, Trainium3 the second."""


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def fp8_tensordot(x: jax.Array, kernel: jax.Array, axes: int, dtype: DTypeLike) -> jax.Array:
    """The sum over the last `axes` axes of x and the first of kernel, in the dtype of x.

    x is [*batch, *in], kernel [*in, *out], the result [*batch, *out].
    """
    return _forward(x, kernel, axes, dtype)[0]


def _forward(
    x: jax.Array, kernel: jax.Array, axes: int, dtype: DTypeLike
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _scaled_dot(x, dtype, kernel, dtype, _last(x, axes), range(axes)), (x, kernel)


def _backward(
    axes: int, dtype: DTypeLike, operands: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = operands
    batch, out = range(x.ndim - axes), range(axes, kernel.ndim)
    last = _last(gradient, len(out))
    to_x = _scaled_dot(gradient, GRADIENT_DTYPE, kernel, dtype, last, out)
    to_kernel = _scaled_dot(x, dtype, gradient, GRADIENT_DTYPE, batch, batch)
    return to_x, to_kernel.astype(kernel.dtype)


fp8_tensordot.defvjp(_forward, _backward)


def _last(x: jax.Array, count: int) -> range:
    return range(x.ndim - count, x.ndim)


def _scaled_dot(
    a: jax.Array, a_dtype: DTypeLike, b: jax.Array, b_dtype: DTypeLike, a_axes: range, b_axes: range
) -> jax.Array:
    """The contraction of a and b over these axes; in the dtype of a."""
    (a_scale, a_narrow), (b_scale, b_narrow) = _quantized(a, a_dtype), _quantized(b, b_dtype)
    contracted = ((tuple(a_axes), tuple(b_axes)), ((), ()))
    product = lax.dot_general(a_narrow, b_narrow, contracted, preferred_element_type=jnp.float32)
    return (product * (a_scale * b_scale)).astype(a.dtype)


def _quantized(x: jax.Array, dtype: DTypeLike) -> tuple[jax.Array, jax.Array]:
    """An FP32 scale, a power of two, and x / scale in `dtype`, whose range it fills.

    A power of two changes no mantissa. All zeros, or a NaN or infinity, have the scale 1.
    """
    largest = jnp.max(jnp.abs(x)).astype(jnp.float32)
    mantissa, exponent = jnp.frexp(largest / float(jnp.finfo(dtype).max))
    exponent -= mantissa == 0.5  # a power of two fills the range by itself
    usable = (largest > 0) & jnp.isfinite(largest)
    scale = jnp.ldexp(jnp.float32(1), jnp.where(usable, exponent, 0))
    return scale, (x.astype(jnp.float32) / scale).astype(dtype)
