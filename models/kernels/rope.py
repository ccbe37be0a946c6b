"""Rotary positions: Su et al., "RoFormer", 2021, in the half-split layout of Llama.

Axis names: T positions, N heads, H head_dim.
"""

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from models.kernels.tiles import ROWS, extent, loaded, rows_from, tile


@nki.jit
def rope(x: Any, cos: Any, sin: Any) -> Any:
    """Turns the pairs (x[i], x[i + H/2]) of every head by the angles of its position.

    x [T, N, H], FP32 cos and sin [T, H/2] -> [T, N, H] of the dtype of x. The products are FP32.
    """
    length, heads, width = x.shape
    turned = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for first in nl.affine_range(0, length, ROWS):
        rows = rows_from(first, length)
        data, result = loaded(x[rows]), tile((extent(rows), heads, width), x.dtype)
        # One angle for all heads: the access pattern repeats it.
        c, s = (loaded(a[rows]).expand_dim(1).broadcast(1, heads) for a in (cos, sin))
        low, high = nl.ds(0, width // 2), nl.ds(width // 2, width // 2)
        _turn(result[:, :, low], data[:, :, low], data[:, :, high], c, s, nl.subtract)
        _turn(result[:, :, high], data[:, :, high], data[:, :, low], c, s, nl.add)
        nisa.dma_copy(dst=turned[rows], src=result)
    return turned


def _turn(result: Any, own: Any, other: Any, cos: Any, sin: Any, op: Any) -> None:
    """own · cos ± other · sin."""
    kept, mixed = tile(result.shape), tile(result.shape)
    nisa.tensor_tensor(kept, own, cos, nl.multiply)
    nisa.tensor_tensor(mixed, other, sin, nl.multiply, engine=nisa.engine.gpsimd)
    nisa.tensor_tensor(result, kept, mixed, op)
