"""RMSNorm and the projections behind it, with the normalised rows in SBUF only.

Axis names: N rows, D model width, M all numbers of queries, keys and values.
"""

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from models.kernels.cores import own_part
from models.kernels.products import BLOCK, add_up, columns_of, loaded_weights
from models.kernels.tiles import ROWS, extent, loaded, parts, spread, tile


@nki.jit
def rms_norm_qkv(x: Any, scale: Any, weights: Any, eps: float) -> Any:
    """(x / sqrt(mean(x²) + eps) · scale) · weights.

    x [N, D], scale [1, D], weights [D, M] -> [N, M] of the dtype of x. The weights fit in SBUF. A
    row's 1 / sqrt(…) is multiplied with its products, so that the Tensor engine need not wait.
    """
    num_rows, width = x.shape
    result = nl.ndarray((num_rows, weights.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    scales, kernels, shift = (
        spread(scale),
        loaded_weights(weights, slice(0, weights.shape[1])),
        tile((ROWS, 1)),
    )
    nisa.memset(shift, eps)
    own = own_part(num_rows, ROWS)
    for rows in parts(own.stop, first=own.start):
        data = loaded(x[rows])
        squares, total, inverse = tile(data.shape), tile((extent(rows), 1)), tile((extent(rows), 1))
        nisa.activation_reduce(squares, nl.square, data, nl.add, total)
        nisa.activation(inverse, nl.rsqrt, total, bias=shift[: extent(rows)], scale=1 / width)
        scaled = tile(data.shape, x.dtype)
        nisa.tensor_tensor(scaled, data, scales[: extent(rows)], nl.multiply)
        columns = columns_of(scaled)
        for block in parts(weights.shape[1], BLOCK):
            part = tile((extent(rows), extent(block)), x.dtype)
            products = add_up(columns, [kernel[:, block] for kernel in kernels])
            nisa.tensor_scalar(part, products, nl.multiply, inverse)
            nisa.dma_copy(dst=result[rows, block], src=part)
    return result
