"""Values that stay in SBUF between kernels.

A scratch tensor that kernels only copy from and to tiles, rows on partitions, may lie in SBUF
instead: rows on partitions as well, blocks of 128 rows side by side. Those are kept that save most
HBM traffic for the room and time they take, as long as every kernel still has room for its tiles.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from neuronjax.errors import OnChipMemoryError
from neuronjax.lower.allocate import allocate
from neuronjax.lower.rebuild import rebuilt
from neuronjax.lower.timeline import Timeline, timeline
from neuronjax.program.affine import Affine, affine
from neuronjax.program.dma import DmaCopy
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Dim, Kind, Memory, RegisterOffset
from neuronjax.program.program import Call, Kernel, Node, Program
from neuronjax.program.walk import Place, instructions, walk


@dataclass(frozen=True, slots=True)
class _Layout:
    """Rows of `width` elements, `lanes` of them beside each other on partitions."""

    buffer: Buffer
    width: int
    lanes: int

    def resident(self) -> Buffer:
        """The buffer in SBUF."""
        blocks = -(-self.buffer.elements // (self.width * self.lanes))
        shape = (self.lanes, blocks * self.width)
        return dataclasses.replace(
            self.buffer, memory=Memory.SBUF, shape=shape, address=None, partition=0
        )

    def access(self, old: Access, trips: Mapping[str, int]) -> Access | None:
        """The same elements in SBUF; None: they do not lie there as a tile does."""
        rows, inner = old.dims[0], old.dims[1:]
        if isinstance(old.offset, RegisterOffset) or not old.variables <= trips.keys():
            return None
        if rows.size > 1 and rows.stride != self.width:
            return None
        split = _split(old.offset, self.width, self.lanes)
        if split is None:
            return None
        block, lane, column = split
        reach = [dim.stride * (dim.size - 1) for dim in inner]
        low = column.interval(trips).low + sum(min(0, end) for end in reach)
        high = column.interval(trips).high + sum(max(0, end) for end in reach)
        lanes = lane.interval(trips)
        if low < 0 or high >= self.width or lanes.low < 0:
            return None
        if lanes.high + rows.size > self.lanes:
            return None
        return dataclasses.replace(
            old,
            buffer=self.resident(),
            partition=lane,
            partitions=rows.size,
            offset=block * self.width + column,
            dims=inner or (Dim(1, 1),),
        )


def _split(offset: Affine, width: int, lanes: int) -> tuple[Affine, Affine, Affine] | None:
    """Block, partition and column of an offset; None: a loop goes through more than one of them."""
    whole = width * lanes
    block: dict[str, int] = {}
    lane: dict[str, int] = {}
    column: dict[str, int] = {}
    for name, factor in offset.terms:
        if not factor % whole:
            block[name] = factor // whole
        elif not factor % width:
            lane[name] = factor // width
        else:
            column[name] = factor
    rest = offset.base % whole
    return (
        affine(offset.base // whole, **block),
        affine(rest // width, **lane),
        affine(rest % width, **column),
    )


@dataclass(slots=True)
class _Candidate:
    """A tensor, the bytes of HBM traffic that it costs, and how long it is wanted."""

    layout: _Layout
    saved: int
    held: int

    @property
    def worth(self) -> float:
        """Bytes saved for each byte of a partition and kernel that it is held for."""
        return self.saved / (self.layout.resident().extent * self.held)


def keep_in_sbuf(program: Program) -> Program:
    """The program with scratch tensors in SBUF as far as they fit, most useful first.

    Call it before `allocate`. Tensors that functions or calls use stay where they are.
    """
    times = timeline(program)
    found = sorted(_candidates(program, times), key=lambda each: -each.worth)
    limit = program.target.core.sbuf.usable_partition_bytes
    room = _room(program, times, limit)
    kept: list[_Candidate] = []
    for candidate in found:
        size = candidate.layout.resident().extent
        lives = times.lives(candidate.layout.buffer.name)
        positions = [at for first, last in lives for at in range(first, last + 1)]
        if all(room[position] >= size for position in positions):
            kept.append(candidate)
            for position in positions:
                room[position] -= size
    while kept:
        result = _with_residents(program, [each.layout for each in kept])
        try:
            allocate(result, check=False)
        except OnChipMemoryError:
            kept.pop()
        else:
            return result
    return program


def _candidates(program: Program, times: Timeline) -> Iterator[_Candidate]:
    refused = {name for alias in program.aliases for name in (alias.buffer, alias.of)}
    refused |= _of_calls(program)
    uses: dict[str, list[tuple[Place, Instruction, Access]]] = {}
    for place, node in instructions(program):
        for access in node.accesses():
            name = access.buffer.name
            uses.setdefault(name, []).append((place, node, access))
            if place.function is not None:
                refused.add(name)
    for buffer in program.buffers:
        if buffer.kind is not Kind.SCRATCH or buffer.on_chip or buffer.name in refused:
            continue
        own = uses.get(buffer.name, [])
        layout = _layout(buffer, own, program.target.core.sbuf.partitions)
        lives = times.lives(buffer.name)
        if layout is not None and len({id(place.kernel) for place, _, _ in own}) > 1:
            saved = sum(access.nbytes * (place.times or 1) for place, _, access in own)
            yield _Candidate(layout, saved, sum(last - first + 1 for first, last in lives))


def _of_calls(program: Program) -> set[str]:
    return {
        buffer.name
        for _, node in walk(program)
        if isinstance(node, Call)
        for buffer in node.arguments
    }


def _layout(
    buffer: Buffer, uses: list[tuple[Place, Instruction, Access]], most: int
) -> _Layout | None:
    """How the buffer lies in SBUF; None: not all of its uses are copies of rows to partitions."""
    if buffer.slots > 1 or buffer.address is not None:
        return None
    if not all(_is_copy_of_rows(node, access) for _, node, access in uses):
        return None
    widths = {access.dims[0].stride for _, _, access in uses if access.dims[0].size > 1}
    if len(widths) != 1:
        return None
    (width,) = widths
    if width < 1 or buffer.elements % width:
        return None
    layout = _Layout(buffer, width, min(most, buffer.elements // width))
    known = (layout.access(access, place.trips) for place, _, access in uses)
    return layout if all(access is not None for access in known) else None


def _is_copy_of_rows(node: Instruction, access: Access) -> bool:
    if not isinstance(node, DmaCopy) or not access.dims:
        return False
    other = node.src if access is node.dst else node.dst
    return other.buffer.memory is Memory.SBUF and other.partitions == access.dims[0].size


def _room(program: Program, times: Timeline, limit: int) -> list[int]:
    """Bytes of each partition that the kernel at each position does not need itself."""
    room = [limit] * times.length
    for _, node in walk(program):
        if isinstance(node, Kernel):
            own = sum(b.extent + 8 for b in node.buffers if b.memory is Memory.SBUF)
            for position in times.kernels.get(id(node), ()):
                room[position] = max(0, limit - own)
    for buffer in program.buffers:
        if buffer.memory is Memory.SBUF:
            for first, last in times.lives(buffer.name):
                for position in range(first, last + 1):
                    room[position] -= buffer.extent
    return room


def _with_residents(program: Program, layouts: list[_Layout]) -> Program:
    known = {layout.buffer.name: layout for layout in layouts}
    new = {layout.buffer.name: layout.resident() for layout in layouts}
    places = {id(node): place for place, node in instructions(program)}

    def change(node: Node) -> Node | None:
        if not isinstance(node, DmaCopy):
            return None if not isinstance(node, Instruction) else node
        trips = places[id(node)].trips
        changed = {
            name: known[access.buffer.name].access(access, trips)
            for name, access in (("dst", node.dst), ("src", node.src))
            if access.buffer.name in known
        }
        return dataclasses.replace(node, **changed) if changed else node  # type: ignore[arg-type]

    buffers = tuple(new.get(buffer.name, buffer) for buffer in program.buffers)
    return dataclasses.replace(program, buffers=buffers, body=rebuilt(program.body, change))
