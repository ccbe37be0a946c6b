"""The K greatest of rows by rounds of the Vector engine: `max8`, then `nc_match_replace8`.

A round takes the eight greatest keys of each row, finds them from the left, one after the other,
and puts what is less than all keys in their places. Keys are FP32 numbers in the order of the
elements; two that differ have keys that differ, also of -0 and 0, and NaN has keys of its own:

| element | key |
|---|---|
| a number | the number times the row's scale |
| -0, 0 | the smallest subnormals |
| -inf, inf | -2^127, 2^127 |
| NaN | the numbers next to these, further from 0 |

A row of FP32 is scaled by 2 if all of it is below 2^126, and else by 0.5, so that there is room for
the keys of what is not finite. In rows of the second kind, numbers below 2^-124 may count as their
neighbours. All NaN of a sign are alike. Numbers of narrower types are scaled by 0.5 without loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuronjax.formats import FLOAT32
from neuronjax.hlo.graph import Op
from neuronjax.lower.chain import elementwise
from neuronjax.lower.chain.boxes import Axis, Region
from neuronjax.lower.chain.positions import Position
from neuronjax.lower.chain.sweep import Sweep, Swept, lanes, tile
from neuronjax.lower.scope import Scope
from neuronjax.lower.values.storage import NARROW_FLOATS
from neuronjax.lower.values.view import View
from neuronjax.lower.write.builder import KernelBuilder, tile_access
from neuronjax.machine.specs import MAX8_CHOSEN, MAX8_ELEMENTS
from neuronjax.program.dma import DmaCopy
from neuronjax.program.element_types import INTEGERS, ElementType
from neuronjax.program.operand import Access, Buffer, Dim, Immediate
from neuronjax.program.operators import AluOp
from neuronjax.program.vector_engine import (
    CopyPredicated,
    MatchReplace8,
    Max8,
    ScalarTensorTensor,
    TensorCopy,
    TensorReduce,
    TensorScalar,
    TensorTensor,
)

LONGEST = MAX8_ELEMENTS // 2
"""Elements of a row: half of what `max8` takes, so that the tiles of two rows fit."""
SETUP = 8
"""Instructions over a row before the first round."""
_PLACE, _WORD = INTEGERS["uint32"], INTEGERS["uint32"]
_TRUTH = INTEGERS["uint8"]

_INFINITY = 2.0**127
_SMALL = 2.0**126
_UP, _DOWN = 2.0, 0.5
_SIGN_AND_EXPONENT, _LAST = 0xFF000000, 1
"""Of the bits of zero and of NaN, with `_LAST` set, become their keys."""
_QUIET, _EXPONENT = 22, 0x00800000
"""The bits by which the last one moves to become that of a quiet NaN; the exponent's last bit."""
_WITHOUT_LAST = 0xFFFFFFFE

_INTEGERS = frozenset({"int8", "uint8", "int16", "uint16", "bool"})
_FLOATS = frozenset({"float32", "bfloat16", "float16"}) | NARROW_FLOATS


def is_selectable(dtype: np.dtype, size: int, kept: int, most: int) -> bool:
    """Whether so many of a row, at most `most`, are chosen in rounds: FP32 holds all numbers of the
    type."""
    return dtype.name in _INTEGERS | _FLOATS and size <= LONGEST and kept <= most


def passes(kept: int) -> int:
    """Instructions over a whole row that choose so many of it."""
    return SETUP + 2 * -(-kept // MAX8_CHOSEN)


def select_views(
    scope: Scope, op: Op, operand: View, dtype: np.dtype, results: Sequence[View]
) -> None:
    """results = the greatest of each row in descending order, and where they first are."""
    shape, axis = operand.shape, len(operand.shape) - 1
    kept = results[0].shape[axis]
    dims = tuple(range(len(shape)))

    def write(builder: KernelBuilder, seen: list[View], _: list[Buffer]) -> None:
        swept = [Swept(view, dims) for view in seen]
        sweep = Sweep(builder, shape, frozenset({axis}), swept, words=0, whole=True)
        _Selection(sweep, dtype, shape[axis], kept).run()

    key = ("select", dtype.name, kept)
    scope.kernel(op.name.rpartition(".")[2], [op], key, [operand, *results], [], write)


@dataclass
class _Selection:
    """Rows are value 0 of the sweep; their greatest are value 1, and places of these value 2."""

    sweep: Sweep
    dtype: np.dtype
    size: int
    kept: int

    @property
    def builder(self) -> KernelBuilder:
        return self.sweep.builder

    @property
    def padded(self) -> int:
        """The length of a row in the tile of keys: `max8` takes no less than eight."""
        return max(MAX8_CHOSEN, self.size)

    @property
    def chosen(self) -> int:
        """How many whole rounds choose."""
        return -(-self.kept // MAX8_CHOSEN) * MAX8_CHOSEN

    def run(self) -> None:
        self.sweep.run(self._box)

    def _box(self, region: Region, position: Position) -> None:
        (chunk,) = region.chunks
        rows = math.prod(axis.size for axis in region.free)
        data = self._load(region, chunk.free, rows, position)
        keys = _Keys(self.builder, rows, lanes(region))
        best = keys.tile(self.chosen, FLOAT32)
        places = keys.tile(self.chosen, _PLACE)
        table = keys.of(data, self.size, self.padded, self.dtype)
        self._rounds(table, best, places, rows)
        best = keys.elements(best, data.element_type, self.dtype)
        axes = [replace(axis, size=self.kept) for axis in chunk.free]
        self._store(1, region, axes, position, best, rows)
        self._store(2, region, axes, position, replace(places, dtype=INTEGERS["int32"]), rows)

    def _load(self, region: Region, row: Sequence[Axis], rows: int, position: Position) -> Access:
        src = self.sweep.hbm(0, [*region.partitions, *region.free, *row], position)
        data = self.sweep.tile(region, (rows, self.size), src.element_type)
        self.builder.emit(DmaCopy(dst=data, src=src))
        return data

    def _store(
        self,
        number: int,
        region: Region,
        axes: Sequence[Axis],
        position: Position,
        chosen: Access,
        rows: int,
    ) -> None:
        kept = tile_access(chosen.buffer, (rows, self.kept), (self.chosen, 1), dtype=chosen.dtype)
        self.sweep.store(number, region, (*region.free, *axes), position, kept)

    def _rounds(self, table: Access, best: Access, places: Access, rows: int) -> None:
        loop = self.builder.loop
        with loop(rows) as row, loop(self.chosen // MAX8_CHOSEN) as turn:
            first = row * self.chosen + turn * MAX8_CHOSEN
            keys = tile_access(table.buffer, (self.padded,), (1,), offset=row * self.padded)
            eight = tile_access(best.buffer, (MAX8_CHOSEN,), (1,), offset=first)
            where = tile_access(places.buffer, (MAX8_CHOSEN,), (1,), offset=first)
            self.builder.emit(Max8(dst=eight, src=keys))
            least = Immediate(-math.inf)
            self.builder.emit(
                MatchReplace8(dst=keys, data=keys, vals=eight, imm=least, dst_idx=where)
            )


@dataclass
class _Keys:
    """The conversion of elements to keys and back, in tiles of `rows` rows in each partition."""

    builder: KernelBuilder
    rows: int
    partitions: int
    #: What keys times 0.5 are multiplied by, for each row: 1 or 4.
    back: Access | None = None

    def tile(self, size: int, dtype: ElementType) -> Access:
        """A tile of so many elements for each row."""
        return tile(self.builder, self.partitions, (self.rows, size), dtype)

    def of(self, data: Access, size: int, padded: int, dtype: np.dtype) -> Access:
        """The keys of elements, which are lost; places beyond them come last."""
        keys = self.tile(padded, FLOAT32)
        inside = tile_access(keys.buffer, (self.rows, size), (padded, 1))
        if padded > size:
            rest = tile_access(keys.buffer, (self.rows, padded - size), (padded, 1), offset=size)
            elementwise.fill(self.builder, rest, Immediate(-math.inf))
        rows = tile_access(data.buffer, (self.rows, size), (size, 1))
        if dtype.name in _INTEGERS:
            self.builder.emit(TensorCopy(dst=inside, src=rows))
        else:
            self._of_numbers(inside, rows, size)
        return keys

    def _of_numbers(self, keys: Access, data: Access, size: int) -> None:
        emit = self.builder.emit
        if data.element_type != FLOAT32:
            wide = self.tile(size, FLOAT32)
            emit(TensorCopy(dst=wide, src=data))
            data = wide
            emit(TensorScalar(dst=keys, data=data, op0=AluOp.MULTIPLY, operand0=Immediate(_DOWN)))
        else:
            scale = _spread(self._scale(data, size), size)
            emit(TensorTensor(dst=keys, data1=data, data2=scale, op=AluOp.MULTIPLY))
        emit(
            TensorScalar(
                dst=keys, data=keys, op0=AluOp.MAXIMUM, operand0=Immediate(-_INFINITY),
                op1=AluOp.MINIMUM, operand1=Immediate(_INFINITY),
            )
        )  # fmt: skip
        plain = self.tile(size, _TRUTH)
        emit(
            TensorScalar(
                dst=plain, data=data, op0=AluOp.ABS_MAX, operand0=Immediate(0.0),
                op1=AluOp.GREATER, operand1=Immediate(0.0),
            )
        )  # fmt: skip
        bits = replace(data, dtype=_WORD)
        emit(
            TensorScalar(
                dst=bits, data=bits, op0=AluOp.BITWISE_AND, operand0=Immediate(_SIGN_AND_EXPONENT),
                op1=AluOp.BITWISE_OR, operand1=Immediate(_LAST),
            )
        )  # fmt: skip
        emit(CopyPredicated(dst=keys, src=data, predicate=plain, reverse_pred=True))

    def _scale(self, data: Access, size: int) -> Access:
        """2 for each row of FP32 whose numbers are all small, else 0.5."""
        rows = replace(data, dims=(Dim(size, self.rows), Dim(1, size)))
        emit = self.builder.emit
        greatest, scale, self.back = (self.tile(1, FLOAT32) for _ in range(3))
        emit(TensorReduce(dst=greatest, op=AluOp.MAXIMUM, data=rows))
        emit(TensorReduce(dst=scale, op=AluOp.MINIMUM, data=rows, negate=True))
        emit(TensorTensor(dst=greatest, data1=greatest, data2=scale, op=AluOp.MAXIMUM))
        is_small = greatest
        steps = (
            (is_small, (AluOp.LESS, _SMALL), (AluOp.MULTIPLY, 1.0)),
            (scale, (AluOp.MULTIPLY, _UP - _DOWN), (AluOp.ADD, _DOWN)),
            (self.back, (AluOp.MULTIPLY, 2 / _UP - 2 / _DOWN), (AluOp.ADD, 2 / _DOWN)),
        )
        for dst, (op0, first), (op1, second) in steps:
            emit(
                TensorScalar(
                    dst=dst, data=greatest, op0=op0, operand0=Immediate(first),
                    op1=op1, operand1=Immediate(second),
                )
            )  # fmt: skip
        return scale

    def elements(self, keys: Access, dtype: ElementType, kind: np.dtype) -> Access:
        """What keys stand for."""
        size = keys.free_elements // self.rows
        answer = self.tile(size, dtype)
        if kind.name in _INTEGERS:
            self.builder.emit(TensorCopy(dst=answer, src=keys))
            return answer
        numbers = answer if dtype == FLOAT32 else self.tile(size, FLOAT32)
        self._numbers(numbers, keys, size)
        if dtype != FLOAT32:
            self.builder.emit(TensorCopy(dst=answer, src=numbers))
        return answer

    def _numbers(self, dst: Access, keys: Access, size: int) -> None:
        """Half of the least key is zero, with its sign."""
        emit = self.builder.emit
        back = Immediate(2 / _DOWN)
        half = Immediate(0.5)
        if self.back is None:
            emit(
                TensorScalar(
                    dst=dst, data=keys, op0=AluOp.MULTIPLY, operand0=half,
                    op1=AluOp.MULTIPLY, operand1=back,
                )
            )  # fmt: skip
        else:
            emit(
                ScalarTensorTensor(
                    dst=dst, data=keys, op0=AluOp.MULTIPLY, operand0=half,
                    op1=AluOp.MULTIPLY, operand1=_spread(self.back, size),
                )
            )  # fmt: skip
        is_special, special = self.tile(size, _TRUTH), self.tile(size, _WORD)
        emit(
            TensorScalar(
                dst=is_special, data=keys, op0=AluOp.ABS_MAX, operand0=Immediate(0.0),
                op1=AluOp.GREATER_EQUAL, operand1=Immediate(_INFINITY),
            )
        )  # fmt: skip
        bits = replace(keys, dtype=_WORD)
        emit(
            TensorScalar(
                dst=special, data=bits, op0=AluOp.LEFT_SHIFT, operand0=Immediate(_QUIET),
                op1=AluOp.BITWISE_OR, operand1=Immediate(_EXPONENT),
            )
        )  # fmt: skip
        emit(TensorTensor(dst=special, data1=special, data2=bits, op=AluOp.BITWISE_OR))
        without_last = Immediate(_WITHOUT_LAST)
        emit(
            TensorScalar(
                dst=special, data=special, op0=AluOp.BITWISE_AND, operand0=without_last,
            )
        )  # fmt: skip
        emit(CopyPredicated(dst=replace(dst, dtype=_WORD), src=special, predicate=is_special))


def _spread(rows: Access, size: int) -> Access:
    """The number of each row, for all its elements."""
    return replace(rows, dims=(Dim(1, rows.free_elements), Dim(0, size)))
