"""The gated feed-forward block: Shazeer, "GLU Variants Improve Transformer", 2020.

Axis names: N rows, D model width, F hidden width.
"""

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from models.kernels.products import BLOCK, add_up, columns_of
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
    hidden = [_hidden(columns, gate, up, part) for part in parts(gate.shape[1])]
    for block in parts(y.shape[1], BLOCK):
        _store_down(y, hidden, down, block)


def _hidden(columns: list[Any], gate: Any, up: Any, part: Any) -> Any:
    """(silu(x · gate) · (x · up))ᵀ of a part of the hidden width, [P, rows]."""
    gates, ups = (_product(columns, weights, part) for weights in (gate, up))
    active, result = tile(gates.shape), tile(gates.shape, columns[0].dtype)
    nisa.activation(active, nl.silu, gates)
    nisa.tensor_tensor(result, active, ups, nl.multiply)
    return result


def _product(columns: list[Any], weights: Any, part: Any) -> Any:
    """weights[:, part]ᵀ · xᵀ, in PSUM."""
    total = tile((extent(part), columns[0].shape[1]), buffer=nl.psum)
    for number, (place, column) in enumerate(zip(parts(weights.shape[0]), columns, strict=True)):
        nisa.nc_matmul(total, loaded(weights[place, part]), column, accumulate=number > 0)
    return total


def _store_down(y: Any, hidden: list[Any], down: Any, block: Any) -> None:
    weights = [loaded(down[part, block]) for part in parts(down.shape[0])]
    for row in parts(y.shape[0]):
        columns = [column[:, row] for column in hidden]
        result = tile((extent(row), extent(block)), y.dtype)
        nisa.tensor_copy(result, add_up(columns, weights, nl.ds(0, extent(block))))
        nisa.dma_copy(dst=y[row, block], src=result)
