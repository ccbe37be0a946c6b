"""Fake quantization: rounds numbers to a narrow format, for quantization-aware training.

Values are scaled, clipped to the range of the format, rounded, and scaled back; they stay in the
dtype they came in. Gradients pass straight through where a value was in range, and vanish where it
was clipped (Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", 2018; Bengio et al., 2013).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from models.layers.fp8 import amax_of


@dataclass(frozen=True)
class Format:
    """The format to which scaled numbers are rounded."""

    largest: float
    rounded: Callable[[jax.Array], jax.Array]  # FP32 in range -> the nearest numbers, FP32


def _fp8(dtype: str) -> Format:
    return Format(
        float(jnp.finfo(dtype).max), lambda x: x.astype(jnp.dtype(dtype)).astype(jnp.float32)
    )


FORMATS: Mapping[str, Format] = {
    "int8": Format(127.0, jnp.round),  # symmetric: -128 is not used
    "float8_e4m3": _fp8("float8_e4m3"),
    "float8_e4m3fn": _fp8("float8_e4m3fn"),
}
"""Formats by name."""


def fake_quantize(x: jax.Array, largest: jax.Array, name: str) -> jax.Array:
    """x rounded to the format of that name, whose largest number stands for `largest`, FP32.

    `largest` is broadcast against x; where it is zero, x becomes zero. The result has the dtype
    of x.
    """
    return _fake_quantize(x, jax.lax.stop_gradient(largest), name)


def fake_quantize_weights(weights: jax.Array, contracted: Sequence[int], name: str) -> jax.Array:
    """Weights with a scale for each slice over their `contracted` axes: each output's own."""
    largest = jnp.max(jnp.abs(weights), axis=tuple(contracted), keepdims=True)
    return fake_quantize(weights, largest.astype(jnp.float32), name)


@dataclass(frozen=True)
class QuantizedInput:
    """A linear map whose activations are fake-quantized, with one scale.

    The range is that of the largest activations of the last steps, over all cores and
    micro-batches. In the first step, which has none before it, activations stay as they are: those
    of a core alone would make its range another one on every mesh.
    """

    format: str  # a name of FORMATS
    history_length: int = 16  # steps

    def __call__(self, x: jax.Array, kernel: jax.Array, axes: int, history: jax.Array) -> jax.Array:
        """x [*batch, *in] · kernel [*in, *out] -> [*batch, *out] in the dtype of x."""
        seen = jnp.max(history[0])
        x = _reporting(x, history)
        x = jnp.where(seen > 0, fake_quantize(x, seen, self.format), x)
        return jnp.tensordot(x, kernel, axes=axes)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _fake_quantize(x: jax.Array, largest: jax.Array, name: str) -> jax.Array:
    form = FORMATS[name]
    scale = largest / form.largest
    scaled = jnp.where(scale > 0, x.astype(jnp.float32) / jnp.where(scale > 0, scale, 1), 0)
    clipped = jnp.clip(scaled, -form.largest, form.largest)
    return (form.rounded(clipped) * scale).astype(x.dtype)


def _fake_forward(
    x: jax.Array, largest: jax.Array, name: str
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _fake_quantize(x, largest, name), (x, largest)


def _fake_backward(
    name: str, operands: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, largest = operands
    in_range = jnp.abs(x.astype(jnp.float32)) <= largest
    return jnp.where(in_range, gradient, 0).astype(x.dtype), jnp.zeros_like(largest)


_fake_quantize.defvjp(_fake_forward, _fake_backward)


@jax.custom_vjp
def _reporting(x: jax.Array, history: jax.Array) -> jax.Array:
    """x; its largest magnitude is reported as the gradient of the history [3, steps]."""
    return x


def _reporting_forward(
    x: jax.Array, history: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return x, (amax_of(x), history)


def _reporting_backward(
    report: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    amax, history = report
    return gradient, jnp.zeros_like(history).at[0, 0].set(amax)


_reporting.defvjp(_reporting_forward, _reporting_backward)
