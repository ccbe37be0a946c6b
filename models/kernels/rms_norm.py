"""RMSNorm: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import nki
import nki.isa as nisa
import nki.language as nl

from models.kernels.cores import on_cores, own_part, tiles_of
from models.kernels.tiles import ROWS, loaded, rows_from, spread, tile


@nki.jit
def rms_norm_kernel(x: Any, scale: Any, eps: float) -> Any:
    """y = x / sqrt(mean(x²) + eps) · scale over each row.

    x [N, D] of any floating-point dtype, scale [1, D] -> y [N, D] of the dtype of x. The sum of
    squares is FP32. A row must fit in SBUF. The last tile may have fewer than 128 rows.
    """
    num_rows = x.shape[0]
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    scales = spread(scale)
    shift = tile((ROWS, 1))
    nisa.memset(shift, eps)
    own = own_part(num_rows, ROWS)
    for first in nl.affine_range(own.start, own.stop, ROWS):
        rows = rows_from(first, own.stop)
        _normalise(y[rows], loaded(x[rows]), scales, shift)
    return y


def _normalise(y: Any, x: Any, scales: Any, shift: Any) -> None:
    """Normalises one tile: x [P, D] in SBUF to y [P, D] in HBM, P at most 128."""
    rows, width = x.shape
    squares, total = tile(x.shape), tile((rows, 1))
    nisa.activation_reduce(squares, nl.square, x, nl.add, total)
    # 1 / sqrt(total / D + eps)
    inverse = tile((rows, 1))
    nisa.activation(inverse, nl.rsqrt, total, bias=shift[:rows], scale=1 / width)
    result = tile(x.shape, x.dtype)
    nisa.scalar_tensor_tensor(result, x, nl.multiply, inverse, nl.multiply, scales[:rows])
    nisa.dma_copy(dst=y, src=result)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """x / sqrt(mean(x²) + eps) · scale over the last axis: x [..., D], scale [D] -> [..., D].

    The kernel makes the values; the gradient is the compiler's own code. With `jax.vmap` over x the
    new axis is one more of the rows.
    """
    return _by_rows(eps)(x, scale)


def _forward(
    x: jax.Array, scale: jax.Array, eps: float
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return rms_norm(x, scale, eps), (x, scale)


def _backward(
    eps: float, saved: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The gradients of y = x · r · scale with r = 1 / sqrt(mean(x²) + eps): for x it is
    r · g · scale - x · r³ · mean(g · scale · x)."""
    x, scale = saved
    x32, g32 = x.astype(jnp.float32), gradient.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    scaled = g32 * scale.astype(jnp.float32)
    common = jnp.mean(scaled * x32, axis=-1, keepdims=True)
    of_x = inverse * scaled - x32 * inverse**3 * common
    of_scale = jnp.sum((g32 * x32 * inverse).reshape(-1, scale.size), axis=0)
    return of_x.astype(x.dtype), of_scale.astype(scale.dtype)


rms_norm.defvjp(_forward, _backward)


def _by_rows(eps: float) -> Any:
    """The kernel over all axes but the last of its argument."""

    @jax.custom_batching.custom_vmap
    def normalised(x: jax.Array, scale: jax.Array) -> jax.Array:
        rows = x.reshape(-1, x.shape[-1])
        kernel = on_cores(rms_norm_kernel, tiles_of(len(rows)))
        return kernel(rows, scale.reshape(1, -1), eps).reshape(x.shape)

    @normalised.def_vmap
    def _rule(
        size: int, batched: list[bool], x: jax.Array, scale: jax.Array
    ) -> tuple[jax.Array, bool]:
        if not batched[1]:
            return normalised(x, scale), True
        x = x if batched[0] else jnp.broadcast_to(x, (size, *x.shape))
        return jax.lax.map(lambda pair: normalised(*pair), (x, scale)), True

    return normalised
