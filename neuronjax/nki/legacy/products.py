"""Products of tiles of NKI 0.x of which a mask leaves a part, and tiles spread by products."""

from __future__ import annotations

import math
from collections.abc import Callable

from neuronjax.nki import isa, tiles
from neuronjax.nki.constants import MemoryRegion
from neuronjax.nki.legacy.index import Predicate, as_mask
from neuronjax.nki.legacy.lives import lives
from neuronjax.nki.legacy.operands import NOTHING, Masked, Nothing, as_tile, plain, within
from neuronjax.nki.tensor import Tensor
from neuronjax.nki.tile_size import TileSize


def product(
    function: Callable[..., Tensor],
    x: Masked,
    y: Masked,
    mask: Predicate = None,
    is_transposed: bool = False,
) -> Masked | None:
    """What a product makes of x [K, M], or [M, K] if it is transposed, and y [K, N], where a mask
    of the columns of y and of what is summed over holds."""
    lives().arrive()
    if isinstance(x, Nothing) or isinstance(y, Nothing):
        return NOTHING
    depth, rows = (1, 0) if is_transposed else (0, 1)
    full = (y.whole_shape[0], y.whole_shape[1])
    ranges = as_mask(mask).ranges(full)
    for operand, dims in ((x, ((depth, 0),)), (y, ((0, 0), (1, 1)))):
        for dim, of in dims:
            if operand.region:
                start = operand.region[dim][0]
                low, high = ranges[of]
                ranges[of] = (max(low, start), min(high, start + operand.shape[dim]))
    if any(low >= high for low, high in ranges):
        return NOTHING
    if ranges == [(0, size) for size in full] and not x.region and not y.region:
        return as_tile((x,), function(plain(x), plain(y)))
    start, whole = x.region[rows] if x.region else (0, x.shape[rows])
    own = [(start, start + x.shape[rows])] * 2
    own[depth] = ranges[0]
    sizes = [whole] * 2
    sizes[depth] = full[0]
    result = function(plain(within(x, own, sizes)), plain(within(y, ranges, full)))
    return as_tile((x,), result, (own[rows], ranges[1]), (whole, full[1]))


def spread(x: Tensor, count: int) -> Tensor:
    """A tile with the one partition of `x` on `count`: products with a column of ones, as the
    compiler of NKI 0.x made them (NKIBench's profile of mamba counts their operations)."""
    ones = tiles.ones((1, count), x.dtype)
    result = tiles.ndarray((count, *x.shape[1:]), x.dtype)
    columns, most = math.prod(x.shape[1:]), TileSize.gemm_moving_fmax
    source, wide = x.reshape((1, columns)), result.reshape((count, columns))
    for start in range(0, columns, most):
        part = slice(start, min(start + most, columns))
        product = tiles.ndarray((count, part.stop - start), "float32", MemoryRegion.psum)
        isa.nc_matmul(product, ones, source[:, part])
        isa.tensor_copy(wide[:, part], product)
    return result
