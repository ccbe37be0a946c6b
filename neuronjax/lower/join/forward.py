"""Tensors of a kernel that never leave the chip: what is stored to HBM and loaded again.

A tensor that is copied from tiles and to tiles, each element once, may lie in SBUF itself. Where a
tile is nothing but what is copied, the instructions work on the tensor in SBUF instead, and the
copy goes. What others read in HBM is still stored there, and not loaded again.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from neuronjax.lower.join.once import Walk, fill_once
from neuronjax.lower.join.resident import Layout, rows_of, translated
from neuronjax.lower.memory.lifetimes import Life, carried, lives, outermost, with_loops
from neuronjax.machine.specs import CoreSpec
from neuronjax.program.affine import affine
from neuronjax.program.dma import DmaCopy
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Dim, Memory, RegisterOffset
from neuronjax.program.program import Kernel, Loop, Node
from neuronjax.program.vector_engine import TensorReduce

Loops = tuple[Loop, ...]


def forwarded(kernel: Kernel, internal: frozenset[str], core: CoreSpec, room: int) -> Kernel:
    """The kernel without transfers through HBM, as far as tensors lie in SBUF as in its tiles.

    `internal` are the HBM buffers that nobody else uses. Kernels are of instructions and
    loops. Tiles and tensors together take `room` bytes of a partition at most.
    """
    return _Forwarding(kernel, internal, core, room).run()


@dataclass(slots=True)
class _Leaf:
    """An instruction, or None where it is not needed any more, and the loops about it."""

    node: Instruction | None
    loops: Loops

    @property
    def trips(self) -> dict[str, int]:
        return {loop.variable: _trips(loop) for loop in self.loops}


@dataclass(slots=True)
class _Copy:
    """A copy between HBM and a tile, and what takes the place of the access to HBM."""

    index: int
    is_store: bool
    tile: Access
    resident: Access


def _trips(loop: Loop) -> int:
    assert isinstance(loop.trips, int)
    return loop.trips


@dataclass(slots=True)
class _Forwarding:
    kernel: Kernel
    internal: frozenset[str]
    core: CoreSpec
    #: Bytes of a partition for tiles and such tensors together: the rest is lost between them.
    most: int
    leaves: list[_Leaf] = field(default_factory=list)
    #: Buffer -> instructions that use it.
    users: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    tiles: dict[str, Buffer] = field(default_factory=dict)
    #: Positions of instructions within each outermost loop.
    cycles: list[Life] = field(default_factory=list)
    #: Bytes of a partition that are free, by instruction.
    room: list[int] = field(default_factory=list)

    def run(self) -> Kernel:
        self.tiles = {buffer.name: buffer for buffer in self.kernel.buffers}
        self._collect(self.kernel.body, ())
        self._measure()
        for buffer in self._candidates():
            self._keep(buffer)
        numbers = iter(range(len(self.leaves)))
        body = self._rebuilt(self.kernel.body, numbers)
        used = {access.buffer.name for leaf in self.leaves if leaf.node for access in
                leaf.node.accesses()}  # fmt: skip
        buffers = tuple(tile for name, tile in self.tiles.items() if name in used)
        return dataclasses.replace(self.kernel, body=body, buffers=buffers)

    def _collect(self, nodes: tuple[Node, ...], loops: Loops) -> None:
        for node in nodes:
            if isinstance(node, Loop):
                self._collect(node.body, (*loops, node))
            else:
                assert isinstance(node, Instruction)
                for access in node.accesses():
                    self.users[access.buffer.name].add(len(self.leaves))
                self.leaves.append(_Leaf(node, loops))

    def _measure(self) -> None:
        self.cycles = outermost(self.kernel.body)
        self.room = [self.most] * len(self.leaves)
        for tile, span in lives(self.kernel.body, self.kernel.buffers).items():
            if tile.memory is Memory.SBUF:
                self._take(tile.extent, span)

    def _take(self, nbytes: int, span: Life) -> None:
        first, last = with_loops(span, self.cycles)
        for index in range(first, last + 1):
            self.room[index] -= nbytes

    def _has_room(self, nbytes: int, span: Life) -> bool:
        first, last = with_loops(span, self.cycles)
        return min(self.room[first : last + 1]) >= nbytes

    def _rebuilt(self, nodes: tuple[Node, ...], numbers: Iterator[int]) -> tuple[Node, ...]:
        rebuilt: list[Node] = []
        for node in nodes:
            if isinstance(node, Loop):
                body = self._rebuilt(node.body, numbers)
                if body:
                    rebuilt.append(dataclasses.replace(node, body=body))
            else:
                new = self.leaves[next(numbers)].node
                if new is not None:
                    rebuilt.append(new)
        return tuple(rebuilt)

    # Candidates

    def _candidates(self) -> list[Buffer]:
        """HBM buffers that are copied from tiles and to tiles, in the order of their use."""
        candidates: dict[str, Buffer] = {}
        for leaf in self.leaves:
            assert leaf.node is not None
            for access in leaf.node.accesses():
                if access.memory is Memory.HBM:
                    candidates.setdefault(access.buffer.name, access.buffer)
        return [buffer for buffer in candidates.values() if buffer.slots == 1]

    def _keep(self, buffer: Buffer) -> None:
        """Keeps a tensor in SBUF, if it lies there as in tiles."""
        layout = self._layout(buffer)
        if layout is None:
            return
        tile = layout.resident(f"{buffer.name}_kept")
        copies = self._copies(buffer, layout, tile)
        users = self.users[buffer.name]
        span = (min(users), max(users))
        if copies is None or not self._has_room(tile.extent, span):
            return
        is_internal = buffer.name in self.internal
        done: list[dict[int, Instruction]] = []
        gone: set[int] = set()
        for copy in copies:
            done.append(self._replace(copy, gone))
            if done[-1]:
                gone.add(copy.index)
        if not any(done) or not (is_internal or all(done[: sum(copy.is_store for copy in copies)])):
            for changes in reversed(done):  # several of them may have changed one instruction
                for index, old in changes.items():
                    self._set(index, old)
            return
        self.tiles[tile.name] = tile
        self._take(tile.extent, span)
        for copy, changes in zip(copies, done, strict=True):
            self._without(copy, is_internal, bool(changes))

    def _layout(self, buffer: Buffer) -> Layout | None:
        widths: set[int] = set()
        most = 1
        stores: list[int] = []
        loads: list[int] = []
        for index in sorted(self.users[buffer.name]):
            node = self.leaves[index].node
            if not isinstance(node, DmaCopy) or node.src.buffer.name == node.dst.buffer.name:
                return None
            is_store = node.dst.buffer.name == buffer.name
            mine, other = (node.dst, node.src) if is_store else (node.src, node.dst)
            rows = rows_of(mine, other.partitions)
            if other.element_type != buffer.dtype or mine.dtype is not None:
                return None
            (stores if is_store else loads).append(index)
            if other.partitions > 1 and rows is not None and rows[0]:
                widths.add(rows[0])
                most = max(most, other.partitions)
        if not stores or not loads or max(stores) > min(loads) or len(widths) > 1:
            return None
        width = widths.pop() if widths else buffer.elements
        if width < 1 or buffer.elements % width:
            return None
        lanes = min(self.core.sbuf.partitions, buffer.elements // width)
        if most > lanes or not self._is_filled_once(buffer, stores):
            return None
        return Layout(buffer, width, lanes)

    def _is_filled_once(self, buffer: Buffer, stores: list[int]) -> bool:
        """Whether every element is stored once and no more."""
        walks: list[Walk] = []
        for index in stores:
            leaf = self.leaves[index]
            assert isinstance(leaf.node, DmaCopy)
            access = leaf.node.dst
            if isinstance(access.offset, RegisterOffset):
                return False
            factors = dict(access.offset.terms)
            loops = ((factors.get(name, 0), count) for name, count in leaf.trips.items())
            steps = (*((dim.stride, dim.size) for dim in access.dims), *loops)
            walks.append(Walk(access.offset.base, steps))
        return fill_once(walks, buffer.elements)

    def _copies(self, buffer: Buffer, layout: Layout, tile: Buffer) -> list[_Copy] | None:
        copies: list[_Copy] = []
        for index in sorted(self.users[buffer.name]):
            leaf = self.leaves[index]
            assert isinstance(leaf.node, DmaCopy)
            is_store = leaf.node.dst.buffer.name == buffer.name
            mine = leaf.node.dst if is_store else leaf.node.src
            other = leaf.node.src if is_store else leaf.node.dst
            resident = layout.access(mine, other.partitions, tile, leaf.trips)
            if resident is None:
                return None
            copies.append(_Copy(index, is_store, other, resident))
        return copies

    # Copies

    def _replace(self, copy: _Copy, gone: set[int]) -> dict[int, Instruction]:
        """Lets instructions work on the tensor instead of the tile of a copy.

        Those that it changes, as they were; none: it cannot be. Copies that are `gone` need their
        tile no more; another copy of the same tile finds no instruction left and stays a copy.
        """
        tile = copy.tile.buffer
        if tile.name not in self.tiles or copy.tile.dtype is not None:
            return {}
        if copy.tile.partitions != copy.resident.partitions:
            return {}
        users = self.users[tile.name] - gone - {copy.index}
        loops = _about([self.leaves[index].loops for index in (copy.index, *users)])
        further = self.leaves[copy.index].loops[len(loops) :]
        old, new = _spread(copy.tile, further), _spread(copy.resident, further)
        if old is None or new is None:
            return {}
        changes: dict[int, Instruction] = {}
        for index in users:
            leaf = self.leaves[index]
            assert leaf.node is not None
            change = functools.partial(translated, old=old, new=new, trips=leaf.trips)
            changed = _on(leaf.node, tile.name, change)
            if changed is None or not _is_in_order(leaf.node, index, copy):
                return {}
            changes[index] = changed
        if copy.is_store and loops and carried(loops[-1], [tile]):
            return {}
        before = {index: self._node(index) for index in changes}
        for index, changed in changes.items():
            self._set(index, changed)
        return before

    def _node(self, index: int) -> Instruction:
        node = self.leaves[index].node
        assert node is not None
        return node

    def _without(self, copy: _Copy, is_internal: bool, is_replaced: bool) -> None:
        """Leaves of a copy what is still needed."""
        node = self._node(copy.index)
        assert isinstance(node, DmaCopy)
        if copy.is_store and not is_internal:
            self._set(copy.index, dataclasses.replace(node, src=copy.resident))
        elif is_replaced:
            self._set(copy.index, None)
        elif copy.is_store:
            self._set(copy.index, dataclasses.replace(node, dst=copy.resident))
        else:
            self._set(copy.index, dataclasses.replace(node, src=copy.resident))

    def _set(self, index: int, new: Instruction | None) -> None:
        for access in self._node(index).accesses():
            self.users[access.buffer.name].discard(index)
        self.leaves[index].node = new
        if new is not None:
            for access in new.accesses():
                self.users[access.buffer.name].add(index)


def _about(nests: list[Loops]) -> Loops:
    """The loops about all of them."""
    levels = zip(*nests, strict=False)
    shared = itertools.takewhile(lambda loops: all(loop is loops[0] for loop in loops), levels)
    return tuple(loops[0] for loops in shared)


def _spread(access: Access, loops: Loops) -> Access | None:
    """What an access goes through while loops about it run; None: it goes from tile to tile."""
    offset = access.offset
    names = {loop.variable for loop in loops}
    if isinstance(offset, RegisterOffset) or names & {*access.slot.variables}:
        return None
    if names & {*access.partition.variables}:
        return None
    factors = dict(offset.terms)
    rest = {name: factor for name, factor in factors.items() if name not in names}
    further = tuple(Dim(factors.get(loop.variable, 0), _trips(loop)) for loop in loops)
    return dataclasses.replace(
        access, offset=affine(offset.base, **rest), dims=(*further, *access.dims)
    )


def _is_in_order(node: Instruction, index: int, copy: _Copy) -> bool:
    """A tile that is stored is written before; one that is loaded is only read, and after."""
    name = copy.tile.buffer.name
    writes = any(
        isinstance(use.operand, Access) and use.operand.buffer.name == name
        for use in node.uses()
        if use.role.is_write
    )
    if copy.is_store:
        return not writes or index < copy.index
    return not writes and index > copy.index


def _on(
    node: Instruction, tile: str, change: Callable[[Access], Access | None]
) -> Instruction | None:
    """An instruction with accesses to a tile changed; None: one cannot be."""
    failed = False

    def changed(operand: Any) -> Any:
        nonlocal failed
        if not isinstance(operand, Access) or operand.buffer.name != tile:
            return operand
        new = change(operand)
        failed = failed or new is None
        return operand if new is None else new

    result = node.with_operands(changed)
    return None if failed else _in_form(node, result)


def _in_form(old: Instruction, new: Instruction) -> Instruction | None:
    """An instruction for which dimensions of a walk have a meaning, with the same meaning."""
    if not isinstance(old, TensorReduce) or not isinstance(new, TensorReduce):
        return new
    if old.axes == len(old.data.dims):
        return dataclasses.replace(new, axes=len(new.data.dims))
    return new if new.data.sizes == old.data.sizes else None
