"""A fused chain of element-wise operations and row reductions, as one pass over tiles.

A `TileProgram` computes over a domain of dimensions. Each of its values varies along some of them:
all of them (a tensor), all but the reduced ones (a row value), or fewer (a bias); broadcasts within
the chain cost nothing. `regions` cuts the domain into boxes, `Values` writes the instructions of
one box, and `TileEmitter` the loops around them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence

from neuronjax.lower.chain.box_tiles import Chain
from neuronjax.lower.chain.box_values import Values
from neuronjax.lower.chain.boxes import Axis, Box, Chunk, Region, regions
from neuronjax.lower.chain.held import most_held
from neuronjax.lower.chain.positions import nest, origin
from neuronjax.lower.chain.tile_program import Output, Reference, TileProgram, levels
from neuronjax.lower.values.storage import storage_of
from neuronjax.lower.write.builder import room_of
from neuronjax.program.affine import Affine
from neuronjax.program.element_types import bytes_of
from neuronjax.program.operand import Access


class TileEmitter(Chain):
    """Writes the instructions of a chain."""

    @functools.cached_property
    def neighbours(self) -> Mapping[int, int]:
        """Dimension -> elements of inputs and outputs that lie side by side along it."""
        program, neighbours = self.program, dict.fromkeys(range(len(self.program.domain)), 0)
        walks = [
            (source.axes, source.strides) for source in program.inputs if source.buffer is not None
        ]
        walks += [(program.axes_of(output.value), output.strides) for output in program.outputs]
        for axes, strides in walks:
            elements = math.prod(program.domain[dim] for dim in axes)
            for dim in axes:
                neighbours[dim] += elements if strides[dim] == 1 else 0
        return neighbours

    def inwards(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        """Free axes in the order in which tiles hold them: as memory does, for long transfers."""
        return tuple(
            sorted(axes, key=lambda axis: self.neighbours[axis.dim] if axis.step == 1 else 0)
        )

    def emit(self) -> None:
        """Emits the whole chain."""
        for region in regions(self.program, self.builder.tuning, rows_fit=self._rows_fit()):
            self.region(region)

    def _rows_fit(self) -> bool:
        """Whether SBUF holds the tiles of whole rows."""
        held = most_held(self.program, self.shortcuts, self.slots, self.builder.tuning.shared_bytes)
        return held <= room_of(self.builder.core, self.builder.tuning)

    def region(self, region: Region) -> None:
        """Emits one box, with the loops around it."""
        position = origin(len(self.program.domain), region.base)
        same = self.shared(region, position)
        nest(self.builder, region.loops, position, lambda at: self._box(region, at, same))

    def shared(self, region: Region, position: dict[int, Affine]) -> dict[Reference, Access]:
        """Inputs that all boxes of a region share, loaded before its loops."""
        loops = {axis.dim for axis in region.loops}
        if not loops or len(region.chunks) != 1 or region.chunks[0].loops:
            return {}
        free = self.inwards((*region.free, *region.chunks[0].free))
        values = Values(self, Box(region.partitions, free, position), {})
        shared: dict[Reference, Access] = {}
        room = self.builder.tuning.shared_bytes
        for number, source in enumerate(self.program.inputs):
            if source.buffer is None or any(source.strides[dim] for dim in loops):
                continue
            sizes = [axis.size for axis in free if axis.dim in source.axes]
            room -= math.prod(sizes) * bytes_of(storage_of(source.dtype).dtype)
            if room >= 0:
                shared[Reference(number, is_input=True)] = values.load(number)
        return shared

    def _box(
        self, region: Region, position: dict[int, Affine], same: Mapping[Reference, Access]
    ) -> None:
        if len(region.chunks) == 1 and not region.chunks[0].loops:
            free = self.inwards((*region.free, *region.chunks[0].free))
            self.box(Box(region.partitions, free, position), same)
        else:
            self._chunked(region, position)

    def box(
        self,
        box: Box,
        given: Mapping[Reference, Access] | None = None,
        wanted: Reference | None = None,
    ) -> Access | None:
        """Emits all values of a box; `given` ones lie in tiles already. Returns the tile of a
        `wanted` one."""
        values = self.values(box, given or {})
        return None if wanted is None else values.in_sbuf(wanted)

    def values(self, box: Box, given: Mapping[Reference, Access]) -> Values:
        """Emits all values of a box, and returns them with their tiles."""
        values = Values(self, box, dict(given), is_whole=True)
        for number in range(len(self.program.nodes)):
            if number not in self.shortcuts.absorbed:
                values.node(number)
        for output in self.program.outputs:
            values.store(output)
        return values

    def _chunked(self, region: Region, position: dict[int, Affine]) -> None:
        """Reductions piece by piece into accumulators, then what follows from them.

        What follows and varies along the row goes through all pieces again.
        """
        program, level = self.program, levels(self.program)
        outer = Values(self, Box(region.partitions, self.inwards(region.free), position), {})
        for sweep in range(max(level, default=0) + 1):
            reductions = [
                number
                for number, node in enumerate(program.nodes)
                if node.reduced and level[number] == sweep
            ]
            outputs = [
                output
                for output in program.outputs
                if program.axes_of(output.value) & program.reduced
                and sweep == (0 if output.value.is_input else level[output.value.number])
            ]
            for number, node in enumerate(program.nodes):
                is_row = not node.reduced and not node.axes & program.reduced
                if sweep and is_row and level[number] == sweep:
                    outer.node_of(Reference(number))
            if reductions or outputs:
                self._sweep(region, position, outer, reductions, outputs)
        for output in program.outputs:
            if not program.axes_of(output.value) & program.reduced:
                outer.node_of(output.value)
                outer.store(output)

    def _sweep(
        self,
        region: Region,
        position: dict[int, Affine],
        outer: Values,
        reductions: Sequence[int],
        outputs: Sequence[Output],
    ) -> None:
        """Emits one walk over all pieces; `outer` holds what walks before it have reduced."""
        program = self.program
        totals = {number: outer.accumulator(number) for number in reductions}
        for chunk in region.chunks:
            start = dict(position)
            for dim, first in chunk.base:
                start[dim] += first

            def body(at: dict[int, Affine], chunk: Chunk = chunk) -> None:
                free = self.inwards((*region.free, *chunk.free))
                box = Box(region.partitions, free, at)
                inner = Values(self, box, dict(outer.known))
                for number in needed(program, reductions, outer.known):
                    if number not in self.shortcuts.absorbed:
                        inner.node(number)
                for number in reductions:
                    outer.accumulate(number, totals[number], inner)
                for output in outputs:
                    inner.node_of(output.value)
                    inner.store(output)

            nest(self.builder, chunk.loops, start, body)
        outer.known.update({Reference(n): total for n, total in totals.items()})


def needed(
    program: TileProgram, wanted: Sequence[int], known: Collection[Reference] = ()
) -> list[int]:
    """Nodes that the operands of `wanted` nodes need, in order; not the wanted themselves."""
    nodes: set[int] = set()
    todo = [operand for n in wanted for operand in program.nodes[n].operands]
    while todo:
        operand = todo.pop()
        if not isinstance(operand, Reference) or operand.is_input or operand in known:
            continue
        if operand.number not in nodes:
            nodes.add(operand.number)
            todo += program.nodes[operand.number].operands
    return sorted(nodes)
