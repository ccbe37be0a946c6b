"""Rotary positions: Su et al., "RoFormer", 2021, in the half-split layout of Llama.

Axis names: T positions, N heads, H head_dim, R the numbers of a head that turn.
"""

from typing import Any

import jax
import jax.numpy as jnp
import nki
import nki.isa as nisa
import nki.language as nl

from models.kernels.cores import on_cores, own_part, tiles_of, varying_as
from models.kernels.tiles import ROWS, extent, loaded, rows_from, tile


@nki.jit
def rope_kernel(x: Any, cos: Any, sin: Any, is_back: bool = False) -> Any:
    """Turns the pairs (x[i], x[i + R/2]) of every head by the angles of its position, or back.

    x [T, N, H], FP32 cos and sin [T, R/2] -> [T, N, H] of the dtype of x. The products are FP32.
    """
    length, heads, width = x.shape
    turned = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    half, own = cos.shape[1], own_part(length, ROWS)
    low, high = nl.ds(0, half), nl.ds(half, half)
    minus, plus = (nl.add, nl.subtract) if is_back else (nl.subtract, nl.add)
    for first in nl.affine_range(own.start, own.stop, ROWS):
        rows = rows_from(first, own.stop)
        data, result = loaded(x[rows]), tile((extent(rows), heads, width), x.dtype)
        # One angle for all heads: the access pattern repeats it.
        c, s = (loaded(a[rows]).expand_dim(1).broadcast(1, heads) for a in (cos, sin))
        _turn(result[:, :, low], data[:, :, low], data[:, :, high], c, s, minus)
        _turn(result[:, :, high], data[:, :, high], data[:, :, low], c, s, plus)
        if width > 2 * half:
            rest = nl.ds(2 * half, width - 2 * half)
            nisa.tensor_copy(result[:, :, rest], data[:, :, rest])
        nisa.dma_copy(dst=turned[rows], src=result)
    return turned


def _turn(result: Any, own: Any, other: Any, cos: Any, sin: Any, op: Any) -> None:
    """own · cos ± other · sin."""
    kept, mixed = tile(result.shape), tile(result.shape)
    nisa.tensor_tensor(kept, own, cos, nl.multiply)
    nisa.tensor_tensor(mixed, other, sin, nl.multiply, engine=nisa.engine.gpsimd)
    nisa.tensor_tensor(result, kept, mixed, op)


def rope(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Turns x [B, T, N, H] by FP32 cos and sin [T, R/2] or [B, T, R/2]; the last H - R numbers of a
    head stay. The kernel also turns the gradient, back; that of the angles, where it is asked for,
    is the compiler's own code."""
    return _rope(x, *varying_as(x, cos, sin))


@jax.custom_vjp
def _rope(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    return _rotate(x, cos, sin, is_back=False)


Saved = tuple[jax.Array, jax.Array, jax.Array]


def _forward(x: jax.Array, cos: jax.Array, sin: jax.Array) -> tuple[jax.Array, Saved]:
    return _rope(x, cos, sin), (x, cos, sin)


def _backward(saved: Saved, gradient: jax.Array) -> Saved:
    x, cos, sin = saved
    half = cos.shape[-1]
    (low, high), (of_low, of_high) = (
        (a[..., :half].astype(jnp.float32), a[..., half : 2 * half].astype(jnp.float32))
        for a in (x, gradient)
    )

    def summed(of_angles: jax.Array) -> jax.Array:
        by_position = jnp.sum(of_angles, axis=2)
        return by_position if cos.ndim == by_position.ndim else jnp.sum(by_position, axis=0)

    of_cos = summed(low * of_low + high * of_high)
    of_sin = summed(low * of_high - high * of_low)
    return _rotate(gradient, cos, sin, is_back=True), of_cos, of_sin


_rope.defvjp(_forward, _backward)


def _rotate(x: jax.Array, cos: jax.Array, sin: jax.Array, *, is_back: bool) -> jax.Array:
    batch, length, heads, width = x.shape
    angles = (
        jnp.broadcast_to(a, (batch, length, a.shape[-1])).reshape(batch * length, -1)
        for a in (cos, sin)
    )
    kernel = on_cores(rope_kernel, tiles_of(batch * length))
    rows = kernel(x.reshape(batch * length, heads, width), *angles, is_back)
    return rows.reshape(x.shape)
