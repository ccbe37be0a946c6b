"""Matmuls in MXFP8, by the custom calls of the Neuron compiler: QuantizeMX and ScaledMatmul.

Blocks of 32 numbers along the contracted axis share a scale, so that each of the three products of
a linear map (of activations and kernel, and of the gradient with either) quantizes both of its
factors along another axis. All are E4M3: with scales of blocks gradients need no wider range
(Mishra et al., "Recipes for Pre-training LLMs with MXFP8", 2025). Sources of the calls: the Neuron
compiler's error pages EVRF036 to EVRF050. Only Trainium3 has them.
"""

import json
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

BLOCK = 32
"""Numbers that share a scale."""

_PACKED = 4
"""Numbers in each word of packed data."""


@dataclass(frozen=True)
class Microscaling:
    """Both factors of each product are MXFP8."""

    dtype: str = "float8_e4m3fn"  # of the elements
    history_length = 0

    def __call__(self, x: jax.Array, kernel: jax.Array, axes: int, history: None) -> jax.Array:
        """The sum over the last `axes` axes of x and the first of kernel, in the dtype of x.

        x is [*batch, *in], kernel [*in, *out], the result [*batch, *out].
        """
        batch, out = x.shape[: x.ndim - axes], kernel.shape[axes:]
        depth = math.prod(kernel.shape[:axes])
        y = _matmul(x.reshape(-1, depth), kernel.reshape(depth, -1), self.dtype)
        return y.reshape(*batch, *out)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _matmul(x: jax.Array, kernel: jax.Array, dtype: str) -> jax.Array:
    """x [M, K] · kernel [K, N] -> [M, N] in the dtype of x."""
    return _product(x, kernel, dtype)


def _forward(
    x: jax.Array, kernel: jax.Array, dtype: str
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _product(x, kernel, dtype), (x, kernel)


def _backward(
    dtype: str, operands: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = operands
    to_kernel = _product(x.T, gradient, dtype).astype(kernel.dtype)
    return _product(gradient, kernel.T, dtype), to_kernel


_matmul.defvjp(_forward, _backward)


def _product(a: jax.Array, b: jax.Array, dtype: str) -> jax.Array:
    """a [M, K] · b [K, N] -> [M, N] in the dtype of a; K is padded to whole blocks."""
    missing = -a.shape[1] % BLOCK
    a = jnp.pad(a, ((0, 0), (0, missing)))
    b = jnp.pad(b, ((0, missing), (0, 0)))
    (a_words, a_scales), (b_words, b_scales) = _quantize(a, -1, dtype), _quantize(b, -2, dtype)
    config = {
        "lhs_contracting_dimensions": [1],
        "rhs_contracting_dimensions": [0],
        "element_dtype": dtype,
    }
    result = jax.ShapeDtypeStruct((a.shape[0], b.shape[1]), jnp.float32)
    multiply = _custom_call("ScaledMatmul", result, {"scaled_dot_backend_config": config})
    product: jax.Array = multiply(a_words, b_words, a_scales, b_scales)
    return product.astype(a.dtype)


def _quantize(x: jax.Array, dim: int, dtype: str) -> tuple[jax.Array, jax.Array]:
    """x in blocks along `dim`, -1 or -2: words of four elements, and codes of scales."""

    def shortened(times: int) -> tuple[int, ...]:
        shape = list(x.shape)
        shape[dim] //= times
        return tuple(shape)

    results = (
        jax.ShapeDtypeStruct(shortened(_PACKED), jnp.uint32),
        jax.ShapeDtypeStruct(shortened(BLOCK), jnp.uint8),
    )
    config = {"dtype": dtype, "dim": dim, "block_size": BLOCK, "scale_method": "EMAX"}
    words, scales = _custom_call("QuantizeMX", results, config)(x.astype(jnp.bfloat16))
    return words, scales


def _custom_call(target: str, results: Any, config: Any) -> Any:
    return jax.ffi.ffi_call(
        target, results, custom_call_api_version=2, legacy_backend_config=json.dumps(config)
    )
