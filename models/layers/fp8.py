"""Matmuls in FP8 with scaling per tensor, for training and inference.

Operands are scaled so that they fill the range of the format, and rounded; products are summed in
FP32 and scaled back. Activations and weights take an E4M3 format, gradients E5M2, whose range is
wider (Micikevicius et al., "FP8 Formats for Deep Learning", 2022). The scale is that of the tensor
at hand ("current scaling", no state), or one that its predecessors would have filled ("delayed
scaling"), so that a tensor need not be read before it can be rounded.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.typing import DTypeLike

GRADIENT_DTYPE = jnp.float8_e5m2
DTYPES = ("float8_e4m3", "float8_e4m3fn")
"""Formats of the operands: Trainium1 and 2 have the first, Trainium3 the second."""


class AmaxHistory(nnx.Variable[jax.Array]):
    """Largest magnitudes, FP32 [3, steps], newest first: of activations, kernel and gradients.

    It is state, not a parameter: `DelayedScaling` reports a step's magnitudes where its gradient
    would be, and `next_history` makes the next step's value of it.
    """


@dataclass(frozen=True)
class CurrentScaling:
    """Scales are those of the tensors at hand."""

    dtype: str  # of activations and kernel: one of DTYPES
    history_length = 0

    def __call__(self, x: jax.Array, kernel: jax.Array, axes: int, history: None) -> jax.Array:
        """The sum over the last `axes` axes of x and the first of kernel, in the dtype of x.

        x is [*batch, *in], kernel [*in, *out], the result [*batch, *out].
        """
        return _with_current_scales(x, kernel, axes, self.dtype)


@dataclass(frozen=True)
class DelayedScaling:
    """Scales are those of the largest magnitudes of the last steps; what exceeds them saturates.

    Before the first step all scales are 1.
    """

    dtype: str  # of activations and kernel: one of DTYPES
    history_length: int = 16  # steps

    def __call__(self, x: jax.Array, kernel: jax.Array, axes: int, history: jax.Array) -> jax.Array:
        """The sum that `CurrentScaling` gives, with scales by history FP32 [3, history_length]."""
        return _with_delayed_scales(x, kernel, history, axes, self.dtype)


def next_history(history: jax.Array, amax: jax.Array) -> jax.Array:
    """The history [..., 3, steps] once a step has reported `amax`, where its gradient would be."""
    return jnp.concatenate([amax[..., :1], history[..., :-1]], axis=-1)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _with_current_scales(x: jax.Array, kernel: jax.Array, axes: int, dtype: DTypeLike) -> jax.Array:
    return _current_forward(x, kernel, axes, dtype)[0]


def _current_forward(x: jax.Array, kernel: jax.Array, axes: int, dtype: DTypeLike) -> Any:
    scaled = _current(x, dtype), _current(kernel, dtype)
    return _forward_product(*scaled, axes).astype(x.dtype), (x, kernel)


def _current_backward(
    axes: int, dtype: DTypeLike, operands: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = operands
    scaled = _current(x, dtype), _current(kernel, dtype), _current(gradient, GRADIENT_DTYPE)
    to_x, to_kernel = _backward_products(*scaled, axes)
    return to_x.astype(x.dtype), to_kernel.astype(kernel.dtype)


_with_current_scales.defvjp(_current_forward, _current_backward)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _with_delayed_scales(
    x: jax.Array, kernel: jax.Array, history: jax.Array, axes: int, dtype: DTypeLike
) -> jax.Array:
    return _delayed_forward(x, kernel, history, axes, dtype)[0]


def _delayed_forward(
    x: jax.Array, kernel: jax.Array, history: jax.Array, axes: int, dtype: DTypeLike
) -> Any:
    largest = jnp.max(history, axis=-1)
    scaled = _saturate(x, dtype, largest[0]), _saturate(kernel, dtype, largest[1])
    return _forward_product(*scaled, axes).astype(x.dtype), (x, kernel, history)


def _delayed_backward(
    axes: int, dtype: DTypeLike, operands: tuple[jax.Array, ...], gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, kernel, history = operands
    largest = jnp.max(history, axis=-1)
    scaled = (
        _saturate(x, dtype, largest[0]),
        _saturate(kernel, dtype, largest[1]),
        _saturate(gradient, GRADIENT_DTYPE, largest[2]),
    )
    to_x, to_kernel = _backward_products(*scaled, axes)
    amax = jnp.stack([amax_of(x), amax_of(kernel), amax_of(gradient)])
    report = jnp.zeros_like(history).at[:, 0].set(amax)
    return to_x.astype(x.dtype), to_kernel.astype(kernel.dtype), report


_with_delayed_scales.defvjp(_delayed_forward, _delayed_backward)

Scaled = tuple[jax.Array, jax.Array]
"""An FP32 scale [] and values in FP8, which stand for scale · values."""


def _forward_product(x: Scaled, kernel: Scaled, axes: int) -> jax.Array:
    return _product(x, kernel, _last(x, axes), range(axes))


def _backward_products(
    x: Scaled, kernel: Scaled, gradient: Scaled, axes: int
) -> tuple[jax.Array, jax.Array]:
    """Gradients of x and kernel of the gradient of their product."""
    batch, out = range(x[1].ndim - axes), range(axes, kernel[1].ndim)
    to_x = _product(gradient, kernel, _last(gradient, len(out)), out)
    return to_x, _product(x, gradient, batch, batch)


def _last(x: Scaled, count: int) -> range:
    return range(x[1].ndim - count, x[1].ndim)


def _product(a: Scaled, b: Scaled, a_axes: range, b_axes: range) -> jax.Array:
    """The contraction of a and b over these axes, FP32."""
    contracted = ((tuple(a_axes), tuple(b_axes)), ((), ()))
    product = lax.dot_general(a[1], b[1], contracted, preferred_element_type=jnp.float32)
    return product * (a[0] * b[0])


def _current(x: jax.Array, dtype: DTypeLike) -> Scaled:
    return _narrow(x, dtype, amax_of(x))


def amax_of(x: jax.Array) -> jax.Array:
    """The largest magnitude of x, FP32 []."""
    return jnp.max(jnp.abs(x)).astype(jnp.float32)


def _saturate(x: jax.Array, dtype: DTypeLike, largest: jax.Array) -> Scaled:
    """Narrows as `_narrow` does; what exceeds the range becomes the largest number in it."""
    scale, limit = _scale(dtype, largest), float(jnp.finfo(dtype).max)
    values = x.astype(jnp.float32) / scale
    values = jnp.where(jnp.isfinite(values), jnp.clip(values, -limit, limit), values)
    return scale, values.astype(dtype)


def _narrow(x: jax.Array, dtype: DTypeLike, largest: jax.Array) -> Scaled:
    """x, of magnitudes up to `largest`, which fills the range of `dtype`."""
    scale = _scale(dtype, largest)
    return scale, (x.astype(jnp.float32) / scale).astype(dtype)


def _scale(dtype: DTypeLike, largest: jax.Array) -> jax.Array:
    """A power of two, which changes no mantissa; 1 where `largest` is zero, infinite or NaN."""
    mantissa, exponent = jnp.frexp(largest / float(jnp.finfo(dtype).max))
    exponent -= mantissa == 0.5  # a power of two fills the range by itself
    usable = (largest > 0) & jnp.isfinite(largest)
    return jnp.ldexp(jnp.float32(1), jnp.where(usable, exponent, 0))
