"""The gradients of `swiglu`.

Axis names: N rows, D model width, F hidden width, P up to 128 rows of a tile.
"""

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from models.kernels.cores import own_part
from models.kernels.products import BLOCK, add_up, columns_of_rows, loaded_weights
from models.kernels.swiglu_rows import TOGETHER, bytes_of, rows_of_gradients
from models.kernels.tiles import ROWS, extent, in_stages, loaded, parts, tile

SPAN = 2048
"""Of the hidden width: what is traced as one iteration of a loop."""

TURNED = 4
"""Transposed tiles of 128 columns that fit side by side in a bank of PSUM."""


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
        work = _Work(columns_of_rows(x, rows), columns_of_rows(of_y, rows), stored, rows, width)
        for first in nl.sequential_range(0, hidden_width, SPAN):
            last = min(first + SPAN, hidden_width)
            hidden = [
                _Hidden(work, place, weights, down, is_last=place.stop == last)
                for block in parts(last, BLOCK, first)
                for weights in [_Weights(block, gate, up)]
                for place in parts(block.stop, first=block.start)
            ]
            in_stages(
                hidden,
                (0, _Hidden.load),
                (1, _Hidden.turn),
                (2, _Hidden.multiply),
                (3, _Hidden.differentiate),
                (4, _Hidden.add),
            )
        for row, total in zip(parts(rows.stop, first=rows.start), work.sums, strict=True):
            result = tile(total.shape, x.dtype)
            nisa.tensor_copy(result, total)
            nisa.dma_copy(dst=of_x[row], src=result)
    return of_x, *stored


def _zeros(shape: tuple[int, ...]) -> Any:
    result = tile(shape)
    nisa.memset(result, 0.0, engine=nisa.engine.gpsimd)
    return result


class _Work:
    """Of some rows: the parts of xᵀ and of the gradient of yᵀ in SBUF, sums for the gradient of
    x [P, D], FP32, and what is stored [N, F]."""

    def __init__(
        self, columns: list[Any], of_columns: list[Any], stored: list[Any], rows: slice, width: int
    ) -> None:
        self.columns, self.of_columns, self.stored, self.rows = columns, of_columns, stored, rows
        self.sums = [_zeros((extent(row), width)) for row in parts(extent(rows))]
        self._gradients: list[Any] = []
        self._turned: list[Any] = []

    def add(self, gradients: list[Any], turned: list[Any], *, is_last: bool) -> None:
        """Adds gradientᵀ · weights of hidden numbers [P, rows] and [P, D] to the sums, for several
        parts at once: the sums are FP32 numbers that the Vector engine takes long to add to."""
        self._gradients += gradients
        self._turned += turned
        if not is_last and len(self._turned) < 2 * TOGETHER:
            return
        for number, total in enumerate(self.sums):
            row = nl.ds(number * ROWS, total.shape[0])
            own = [new[:, row] for new in self._gradients]
            for block in parts(total.shape[1], BLOCK):
                products = add_up(own, [weights[:, block] for weights in self._turned])
                nisa.tensor_tensor(total[:, block], total[:, block], products, nl.add)
        self._gradients, self._turned = [], []


class _Weights:
    """The weights of up to 512 hidden numbers, in HBM; the first part that asks loads them."""

    def __init__(self, block: slice, gate: Any, up: Any) -> None:
        self._block, self._in_hbm = block, (gate, up)
        self._loaded: list[list[Any]] = []

    def of_part(self, place: slice) -> list[list[Any]]:
        """Parts [128, P] of the columns of `gate`, and of `up`."""
        if not self._loaded:
            self._loaded = [loaded_weights(weights, self._block) for weights in self._in_hbm]
        first = self._block.start
        own = slice(place.start - first, place.stop - first)
        return [[part[:, own] for part in weights] for weights in self._loaded]


class _Hidden:
    """Up to 128 hidden numbers of some rows [P, rows], and the gradients of what they are made of:
    its stages."""

    def __init__(
        self, work: _Work, place: slice, weights: _Weights, down: Any, *, is_last: bool
    ) -> None:
        self.is_last = is_last
        self.work, self.place, self._of_block, self._down = work, place, weights, down
        self.weights: list[list[Any]] = []
        self.down: Any = None
        self.downs: list[Any] = []
        self.turned: list[Any] = []
        self.products: list[Any] = []
        self.made: list[Any] = []

    def load(self) -> None:
        """Its weights."""
        self.weights = self._of_block.of_part(self.place)
        self.down = loaded(self._down[self.place])

    def turn(self) -> None:
        """The weights transposed: parts of `down`, `gate` and `up` [P, D]."""
        width, rows = self.down.shape[1], self.down.shape[0]
        self.downs = turned_beside([self.down[:, part] for part in parts(width)])
        self.turned = [_joined(weights, rows, width) for weights in self.weights]

    def multiply(self) -> None:
        """a, b and the gradient of h, in PSUM."""
        gates, ups = self.weights
        self.products = [
            add_up(gates, self.work.columns),
            add_up(ups, self.work.columns),
            add_up(self.downs, self.work.of_columns),
        ]

    def differentiate(self) -> None:
        """h, and the gradients of a and b."""
        gated, others, of_hidden = self.products
        shape, dtype = gated.shape, self.down.dtype
        active, slope, of_active = tile(shape), tile(shape), tile(shape)
        hidden, of_gated, of_others = (tile(shape, dtype) for _ in range(3))
        nisa.activation(active, nl.silu, gated)
        nisa.activation(slope, nl.silu_dx, gated)
        nisa.tensor_tensor(hidden, active, others, nl.multiply)
        nisa.tensor_tensor(of_others, active, of_hidden, nl.multiply)
        nisa.tensor_tensor(of_active, slope, others, nl.multiply)
        nisa.tensor_tensor(of_gated, of_active, of_hidden, nl.multiply)
        self.made = [hidden, of_gated, of_others]

    def add(self) -> None:
        """Stores what was made, transposed, and adds to the gradient of x."""
        for target, new in zip(self.work.stored, self.made, strict=True):
            _store_turned(target[self.work.rows, self.place], new)
        self.work.add(self.made[1:], self.turned, is_last=self.is_last)


def turned_beside(tiles: list[Any]) -> list[Any]:
    """The transposes of tiles of SBUF with up to 128 columns each, four of which leave PSUM at
    once."""
    result: list[Any] = []
    for group in parts(len(tiles), TURNED):
        members = tiles[group]
        height, width = max(t.shape[1] for t in members), members[0].shape[0]
        shape = height, len(members), width
        in_psum, turned = tile(shape, members[0].dtype, nl.psum), tile(shape, members[0].dtype)
        for number, member in enumerate(members):
            nisa.nc_transpose(in_psum[: member.shape[1], number], member)
        if all(member.shape[1] == height for member in members):
            nisa.tensor_copy(turned, in_psum, engine=nisa.engine.scalar)
        else:
            for number, member in enumerate(members):
                own = slice(0, member.shape[1])
                nisa.tensor_copy(turned[own, number], in_psum[own, number])
        result += [turned[: m.shape[1], number] for number, m in enumerate(members)]
    return result


def _joined(weights: list[Any], rows: int, width: int) -> Any:
    """Parts [128, P] of the rows of weights, transposed beside each other: [P, D]."""
    result = tile((rows, width), weights[0].dtype)
    for span in parts(width, BLOCK):
        in_psum = tile((rows, extent(span)), weights[0].dtype, nl.psum)
        for part in parts(extent(span)):
            nisa.nc_transpose(in_psum[:, part], weights[(span.start + part.start) // ROWS])
        nisa.tensor_copy(result[:, span], in_psum)
    return result


def _store_turned(target: Any, new: Any) -> None:
    """new [P, rows] of SBUF, transposed, to rows of HBM."""
    turned = turned_beside([new[:, row] for row in parts(new.shape[1])])
    for row, own in zip(parts(new.shape[1]), turned, strict=True):
        nisa.dma_copy(dst=target[row], src=own)
