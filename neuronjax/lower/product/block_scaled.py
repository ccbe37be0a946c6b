"""`block_scaled_product`: a product of MX blocks on the Tensor engine.

Source: NKI ISA nc_matmul_mx. Four neighbours of an operand are a word; its scales are a tensor
beside it, with a byte for each word. Panels of both are loaded in the same way: the words of a
block lie on eight neighbouring partitions, and scales on the first four of a quadrant.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.chain.boxes import Axis
from neuronjax.lower.chain.positions import Position
from neuronjax.lower.chain.tiles import TileEmitter
from neuronjax.lower.epilogue import Epilogue
from neuronjax.lower.product.matmul import dimensions
from neuronjax.lower.product.panels import Operand, Panel
from neuronjax.lower.product.product import ProductWriter
from neuronjax.lower.product.steps import Step, steps
from neuronjax.lower.scope import Scope
from neuronjax.lower.values.view import View, whole_view
from neuronjax.lower.write.builder import KernelBuilder
from neuronjax.lower.write.kernel_labels import chain_name
from neuronjax.machine.specs import MX_BLOCK, MX_WORD, PARTITIONS, QUADRANT
from neuronjax.program.affine import Flag
from neuronjax.program.element_types import INTEGERS, PACKED, ElementType, Packed, bytes_of
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer
from neuronjax.program.program import Alias
from neuronjax.program.tensor_engine import MatmulMX

_WORD, _CODE = INTEGERS["uint32"], INTEGERS["uint8"]


@dataclass
class BlockScaledWriter(ProductWriter):
    """Writes the kernel of a product of words, whose scales are loaded with them."""

    scales: tuple[Operand, Operand] = field(kw_only=True)
    packed: tuple[Packed, Packed] = field(kw_only=True)
    #: The panel of scales for the name of each panel of words.
    _scaling: dict[str, Panel] = field(default_factory=dict, kw_only=True)

    def steps(self) -> list[Step]:
        """The contracted words, neighbours on neighbouring partitions."""
        return steps(self.product, self.left, self.right, 1, self.builder.tuning)

    def panel(
        self, operand: Operand, free: Sequence[Axis], step: Step, at: Position, slots: int
    ) -> Panel:
        """An empty panel, and one for its scales."""
        panel = super().panel(operand, free, step, at, slots)
        side = self._side_of(operand)
        if side is not None:
            scales = super().panel(self.scales[side], free, step, at, slots)
            self._scaling[panel.buffer.name] = scales
        return panel

    def panel_bytes(self, operand: Operand, free: Sequence[Axis], step: Step) -> int:
        """Bytes of each partition for a panel and its scales."""
        nbytes, side = super().panel_bytes(operand, free, step), self._side_of(operand)
        if side is not None:
            nbytes += super().panel_bytes(self.scales[side], free, step)
        return nbytes

    def load(
        self, panel: Panel, axes: Sequence[Axis], step: Step, free: Sequence[Axis], at: Position
    ) -> None:
        """Fills the part of a panel over `axes`, and its scales."""
        super().load(panel, axes, step, free, at)
        scales = self._scaling.get(panel.buffer.name)
        if scales is not None:
            super().load(scales, axes, step, free, at)

    def multiply(
        self,
        dst: Access,
        pair: Sequence[Panel],
        tile: tuple[tuple[Axis, ...], tuple[Axis, ...]],
        at: Position,
        both: Axis | None,
        start: Flag,
        stop: Flag,
    ) -> Instruction:
        """The product of two panels of words at a position."""
        words, scales = [], []
        for panel, axes in zip(pair, tile, strict=True):
            side = self._side_of(panel.operand)
            assert side is not None
            words.append(replace(panel.access(axes, at), dtype=self.packed[side]))
            scales.append(self._scaling[panel.buffer.name].access(axes, at))
        return MatmulMX(
            dst=dst, stationary=words[0], moving=words[1],
            stationary_scale=scales[0], moving_scale=scales[1], start=start, stop=stop,
        )  # fmt: skip

    def _side_of(self, operand: Operand) -> int | None:
        """The number of an operand of the product; None: it belongs to what follows."""
        return next((n for n, o in enumerate((self.left, self.right)) if o is operand), None)


def block_scaled_product(scope: Scope, op: Op, epilogue: Epilogue) -> None:
    """A product of elements and scales, with its epilogue, as one kernel."""
    left, right = op.operands[:2]
    pairs = ((left, right.shape[-2]), (right, left.shape[-2]))
    words = [_words(scope, op, value, others) for value, others in pairs]
    codes = [_codes(scope, op, value) for value in op.operands[2:]]
    first, second = (PACKED[f"{name}_x{MX_WORD}"] for name in op.attributes["element_types"])
    packed = (first, second)
    sides, scaling = dimensions(op, words), dimensions(op, codes)

    def write(share: float, builder: KernelBuilder, seen: list[View], made: list[Buffer]) -> None:
        buffers = [*(view.buffer for view in seen[4:]), *made]
        emitter = TileEmitter(builder, epilogue.program, buffers, builder.tuning.chain_slots)
        BlockScaledWriter(
            builder, sides.product, *sides.operands(seen[:2], (_WORD, _WORD)), emitter,
            op.result.dtype, share, scales=scaling.operands(seen[2:4], (_CODE, _CODE)),
            packed=packed,
        ).write()  # fmt: skip

    plans = [[functools.partial(write, 0.5**halvings)] for halvings in range(4)]
    key = (op.name, sides, scaling, epilogue.program, packed)
    scope.kernel(
        chain_name(epilogue.operations), epilogue.operations, key,
        [*words, *codes, *epilogue.views], epilogue.buffers, plans,
    )  # fmt: skip


def _words(scope: Scope, op: Op, value: Value, others: int) -> View:
    """Elements [..., M, K], or words of them, as words [..., M, K / 4].

    They are transposed in memory before the product if the Tensor engine is what it waits for, as
    the other operand has so many rows, else while it loads them.
    """
    view, rates = _seen_as(scope, value, _WORD), scope.unit.rates
    tile_bytes = PARTITIONS * PARTITIONS * bytes_of(_WORD)
    if others * rates.column_ns <= tile_bytes / rates.bytes_per_ns:
        return view
    return whole_view(*_turned(scope, op, view)).along(_turn(view))


def _codes(scope: Scope, op: Op, value: Value) -> View:
    """Scales [..., M, K / 32] as a byte for each word [..., M, K / 4]: of a quadrant, the engine
    reads the scales of its blocks from the first partitions, here from any that follow each other.
    """
    view = _seen_as(scope, value, _CODE)
    buffer, (*outer, count, rows) = _turned(scope, op, view)
    blocks = QUADRANT * MX_WORD // MX_BLOCK
    quadrants = count // blocks
    shape = (*outer, quadrants, QUADRANT // blocks, blocks, rows)
    source = whole_view(buffer, (*outer, quadrants, blocks, rows))
    rank = len(source.shape)
    repeated = source.broadcast(shape, (*range(rank - 2), rank - 1, rank))
    target = scope.scratch(shape, _CODE)
    scope.copy(repeated, whole_view(target, shape), op)
    return whole_view(target, (*outer, quadrants * QUADRANT, rows)).along(_turn(view))


def _seen_as(scope: Scope, value: Value, dtype: ElementType) -> View:
    """The memory of a value as elements of a type that is as wide as its own or wider."""
    buffer = scope.dense(value)
    *outer, depth = value.shape
    shape = (*outer, depth * buffer.dtype.storage_bits // dtype.storage_bits)
    seen = scope.scratch(shape, dtype)
    scope.unit.aliases.append(Alias(seen.name, scope.unit.root_of(buffer.name)))
    return whole_view(seen, shape)


def _turned(scope: Scope, op: Op, view: View) -> tuple[Buffer, tuple[int, ...]]:
    """A copy whose last two dimensions lie in the other order, and its shape."""
    source = view.along(_turn(view))
    target = scope.scratch(source.shape, view.buffer.dtype)
    scope.copy(source, whole_view(target, source.shape), op)
    return target, source.shape


def _turn(view: View) -> tuple[int, ...]:
    """The permutation that swaps the last two dimensions."""
    rank = len(view.shape)
    return (*range(rank - 2), rank - 1, rank - 2)


EPILOGUES = {"block_scaled_product": block_scaled_product}
