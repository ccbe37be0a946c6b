"""The gated feed-forward block: Shazeer, "GLU Variants Improve Transformer", 2020.

Axis names: N rows, D model width, F hidden width.
"""

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from models.kernels.products import BLOCK, add_up, columns_of, loaded_weights
from models.kernels.tiles import extent, loaded, parts, tile

ROWS_AT_ONCE = 512
"""Rows that share the weights that are loaded: the columns of a product."""


@nki.jit
def swiglu(x: Any, gate: Any, up: Any, down: Any) -> Any:
    """(silu(x · gate) · (x · up)) · down.

    x [N, D], gate and up [D, F], down [F, D] -> [N, D] of the dtype of x. Weights pass through SBUF
    once for 512 rows; hidden numbers never leave it. They are made transposed, 128 of them for all
    rows, which is how the product with `down` takes them.
    """
    num_rows, width = x.shape
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for rows in parts(num_rows, ROWS_AT_ONCE):
        columns = [tile((extent(part), extent(rows)), x.dtype) for part in parts(width)]
        for row in parts(extent(rows)):
            of_row = columns_of(loaded(x[slice(rows.start + row.start, rows.start + row.stop)]))
            for column, new in zip(columns, of_row, strict=True):
                nisa.tensor_copy(column[:, row], new, engine=nisa.engine.gpsimd)
        store_swiglu(y[rows], columns, gate, up, down)
    return y


def store_swiglu(y: Any, columns: list[Any], gate: Any, up: Any, down: Any) -> None:
    """Of up to 512 rows: y [P, D] and the weights in HBM, the parts of xᵀ in SBUF."""
    hidden = []
    for block in parts(gate.shape[1], BLOCK):
        gates, ups = (loaded_weights(weights, block) for weights in (gate, up))
        hidden += [_hidden(columns, gates, ups, part) for part in parts(extent(block))]
    for block in parts(y.shape[1], BLOCK):
        weights = loaded_weights(down, block)
        for rows in parts(y.shape[0]):
            result = tile((extent(rows), extent(block)), y.dtype)
            nisa.tensor_copy(result, add_up([part[:, rows] for part in hidden], weights))
            nisa.dma_copy(dst=y[rows, block], src=result)


def _hidden(columns: list[Any], gates: list[Any], ups: list[Any], part: slice) -> Any:
    """(silu(x · gate) · (x · up))ᵀ of a part of the hidden width, [P, rows]."""
    gated, others = (add_up([w[:, part] for w in weights], columns) for weights in (gates, ups))
    active, result = tile(gated.shape), tile(gated.shape, columns[0].dtype)
    nisa.activation(active, nl.silu, gated)
    nisa.tensor_tensor(result, active, others, nl.multiply)
    return result
