"""The gradients of `swiglu`.

Axis names: N rows, D model width, F hidden width, P up to 128 rows of a tile.
"""

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from models.kernels.cores import own_part
from models.kernels.products import BLOCK, add_up, columns_of, columns_of_rows, loaded_weights
from models.kernels.swiglu_rows import bytes_of, rows_of_gradients
from models.kernels.tiles import ROWS, extent, loaded, parts, rows_from, tile, transposed


@nki.jit
def swiglu_gradients(x: Any, gate: Any, up: Any, down: Any, of_y: Any) -> tuple[Any, Any, Any, Any]:
    """Of y = h · down with h = silu(a) · b, a = x · gate and b = x · up: the gradient of x, h, and
    the gradients of a and b, which with x and that of y make the gradients of the weights.

    x and of_y [N, D], gate and up [D, F], down [F, D] -> [N, D] and three times [N, F], of the
    dtype of x. a and b are computed anew, transposed, 128 hidden numbers for up to 512 rows.
    """
    (num_rows, width), hidden_width = x.shape, gate.shape[1]
    of_x = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    stored = [
        nl.ndarray((num_rows, hidden_width), dtype=x.dtype, buffer=nl.shared_hbm) for _ in range(3)
    ]
    own = own_part(num_rows, ROWS)
    step = rows_of_gradients(width, bytes_of(x.dtype)) or ROWS
    for rows in parts(own.stop, step, own.start):
        columns, of_columns = columns_of_rows(x, rows), columns_of_rows(of_y, rows)
        sums = [_zeros((extent(row), width)) for row in parts(extent(rows))]
        for first in nl.sequential_range(0, hidden_width, BLOCK):
            block = rows_from(first, hidden_width, BLOCK)
            gates, ups = (loaded_weights(weights, block) for weights in (gate, up))
            for part in parts(extent(block)):
                place = slice(block.start + part.start, block.start + part.stop)
                own_gates, own_ups = ([w[:, part] for w in weights] for weights in (gates, ups))
                downs = columns_of(loaded(down[place]))
                made = _Hidden(
                    add_up(own_gates, columns), add_up(own_ups, columns), add_up(downs, of_columns)
                )
                for target, new in zip(stored, made.in_dtype(x.dtype), strict=True):
                    _store_turned(target[rows, place], new)
                for new, weights in ((made.of_gated, own_gates), (made.of_others, own_ups)):
                    _add_products(sums, new, _joined(weights))
        for row, total in zip(parts(rows.stop, first=rows.start), sums, strict=True):
            result = tile(total.shape, x.dtype)
            nisa.tensor_copy(result, total)
            nisa.dma_copy(dst=of_x[row], src=result)
    return of_x, *stored


def _zeros(shape: tuple[int, ...]) -> Any:
    result = tile(shape)
    nisa.memset(result, 0.0, engine=nisa.engine.gpsimd)
    return result


class _Hidden:
    """Hidden numbers [P, rows], and the gradients of what they are made of."""

    of_gated: Any
    of_others: Any

    def __init__(self, gated: Any, others: Any, of_hidden: Any) -> None:
        """From a, b and the gradient of h in PSUM."""
        self._gated, self._others, self._of_hidden = gated, others, of_hidden

    def in_dtype(self, dtype: Any) -> tuple[Any, Any, Any]:
        """h, and the gradients of a and b."""
        shape = self._gated.shape
        active, slope, of_active = tile(shape), tile(shape), tile(shape)
        hidden, self.of_gated, self.of_others = (tile(shape, dtype) for _ in range(3))
        nisa.activation(active, nl.silu, self._gated)
        nisa.activation(slope, nl.silu_dx, self._gated)
        nisa.tensor_tensor(hidden, active, self._others, nl.multiply)
        nisa.tensor_tensor(self.of_others, active, self._of_hidden, nl.multiply)
        nisa.tensor_tensor(of_active, slope, self._others, nl.multiply)
        nisa.tensor_tensor(self.of_gated, of_active, self._of_hidden, nl.multiply)
        return hidden, self.of_gated, self.of_others


def _store_turned(target: Any, new: Any) -> None:
    """new [P, rows] of SBUF, transposed, to rows of HBM."""
    for row in parts(new.shape[1]):
        turned = tile((extent(row), new.shape[0]), new.dtype)
        transposed(turned, new[:, row])
        nisa.dma_copy(dst=target[row], src=turned)


def _joined(weights: list[Any]) -> Any:
    """Parts [128, P] of the rows of weights, transposed beside each other: [P, D]."""
    width = sum(part.shape[0] for part in weights)
    result = tile((weights[0].shape[1], width), weights[0].dtype)
    for place, part in zip(parts(width), weights, strict=True):
        transposed(result[:, place], part)
    return result


def _add_products(sums: list[Any], new: Any, weights: Any) -> None:
    """Adds newᵀ · weights to the sums of every 128 rows: new [P, rows], weights [P, D]."""
    for row, total in zip(parts(new.shape[1]), sums, strict=True):
        for block in parts(weights.shape[1], BLOCK):
            products = add_up([new[:, row]], [weights[:, block]])
            nisa.tensor_tensor(total[:, block], total[:, block], products, nl.add)
