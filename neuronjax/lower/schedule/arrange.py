"""The arrangement of a list of nodes in other orders, on tiles of one value each."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from neuronjax.lower.memory.lifetimes import Life, lives
from neuronjax.lower.schedule.clocks import Timer
from neuronjax.lower.schedule.greedy import Planner, Room, Tile, ages, paths
from neuronjax.lower.schedule.in_place import in_place
from neuronjax.lower.schedule.renaming import Renamed, renamed
from neuronjax.lower.write.rebuild import with_body, with_tiles
from neuronjax.machine.specs import CoreSpec
from neuronjax.program.dma import DmaInstruction
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Buffer, Memory
from neuronjax.program.program import Loop, Node
from neuronjax.program.walk import leaves

Nodes = tuple[Node, ...]
Tiles = Mapping[str, Buffer]

_ALIGNMENT = 8
"""Bytes that a tile may need to begin where it may."""


@dataclass(frozen=True, slots=True)
class Arranged:
    """Nodes in some order, how long they take, tiles that are gone, and new ones or new places.

    `order` has the number that each node had before.
    """

    time: float
    nodes: Nodes
    order: Sequence[int]
    gone: set[str]
    tiles: Tiles


@dataclass(frozen=True, slots=True)
class Arranger:
    """What lists are arranged for: a core and its prices."""

    timer: Timer
    core: CoreSpec

    @property
    def room(self) -> Room:
        """All of both memories."""
        psum = self.core.psum
        banks = psum.usable_partition_bytes // psum.bank_bytes
        return Room(banks, self.core.sbuf.usable_partition_bytes, self.core.dma.rings_per_engine)

    def time(self, nodes: Nodes, loop: Loop | None) -> float:
        """How long nodes take, in all iterations of the loop about them."""
        if loop is None:
            return self.timer.time(nodes)
        return self.timer.job(with_body(loop, nodes)).duration

    def arranged(
        self,
        nodes: Nodes,
        loop: Loop | None,
        free: Tiles,
        lasting: Tiles,
        room: Room,
        spare: int,
    ) -> Arranged | None:
        """The fastest order that is found; None: the tiles do not fit into `room`.

        `free` tiles hold nothing before or after the nodes, `lasting` ones do. Those of loops
        within the nodes have places in PSUM already. `loop` is the one about the nodes. New tiles
        take `spare` more bytes of each partition of SBUF at most, so that none need share memory.
        """
        variable = loop.variable if loop is not None else None
        psum = {name: tile for name, tile in free.items() if tile.memory is Memory.PSUM}
        ways = itertools.chain(
            renamings(nodes, variable, free, spare, (2, 1)),
            _fitting(renamed(nodes, psum, variable, 1), free, max(0, spare)),
        )
        for new in ways:
            choices: list[Arranged] = []
            for choice in self._orders(new, loop, free, lasting, room):
                choices.append(choice)
                if choice.time < self.timer.tuning.enough_ratio * self.least(nodes, loop):
                    break
            if choices:
                return min(choices, key=lambda choice: choice.time)
        return None

    def in_best_order(
        self, new: Renamed, loop: Loop, free: Tiles, lasting: Tiles, room: Room
    ) -> Renamed | None:
        """Nodes on new tiles in the first order that is found, without banks; None: there is none.

        The arguments are those of `arranged`.
        """
        best = next(self._orders(new, loop, free, lasting, room), None)
        if best is None:
            return None
        place = {position: index for index, position in enumerate(best.order)}
        return dataclasses.replace(
            new,
            nodes=tuple(new.nodes[position] for position in best.order),
            users={name: {place[node] for node in users} for name, users in new.users.items()},
        )

    def least(self, nodes: Nodes, loop: Loop | None) -> float:
        """What the busiest engine does, in all iterations of the loop about them."""
        work = self.timer.work(nodes)
        return work * loop.trips if loop is not None and isinstance(loop.trips, int) else work

    def _orders(
        self, new: Renamed, loop: Loop | None, free: Tiles, lasting: Tiles, room: Room
    ) -> Iterator[Arranged]:
        tiles = {name: tile for name, tile in free.items() if name not in new.gone} | new.new
        users = [
            Tile(name, self.banks(tiles[name]), nbytes_of(tiles[name]), tuple(sorted(using)))
            for name, using in new.users.items()
        ]
        known = {**tiles, **lasting}
        users += (
            inner_tile
            for index, node in enumerate(new.nodes)
            for inner_tile in self.inner(index, node, known)
        )
        room = Room(
            banks=room.banks - sum(map(self.banks, lasting.values())),
            nbytes=room.nbytes - sum(map(nbytes_of, lasting.values())),
            rings=room.rings,
        )
        if room.banks < 0:
            return
        pinned: dict[str, int] = {}
        end = room.banks
        for name, tile in lasting.items():
            if tile.memory is Memory.PSUM:
                pinned[name] = end
                end += self.banks(tile)
        jobs = [self.timer.job(node) for node in new.nodes]
        ties = self.timer.before(new.nodes, loop)
        before = ties[: len(jobs)]
        for urge in (paths, ages):
            urgency = urge(self.timer, jobs, before)
            ways = (
                Planner(self.timer, jobs, before, users, room, urgency, in_order=in_order).run()
                for in_order in (False, True)
            )
            chosen = next((way for way in ways if way is not None), None)
            if chosen is not None:
                placed = {
                    name: self.placed(known[name], bank)
                    for name, bank in {**pinned, **chosen.banks}.items()
                    if name in known
                }
                order = tuple(
                    _queued(new.nodes[position], chosen.queues.get(position))
                    for position in chosen.order
                )
                order = with_tiles(order, placed)
                queued = [
                    job._replace(queue=chosen.queues.get(index, job.queue))
                    for index, job in enumerate(jobs)
                ]
                self.timer.reorder(order, chosen.order, queued, ties, loop)
                time = self.time(order, loop)
                yield Arranged(time, order, chosen.order, new.gone, {**tiles, **placed})

    def inner(self, index: int, node: Node, known: Tiles) -> Iterator[Tile]:
        """What tiles of loops within a node take while it runs, those that are `known` apart."""
        if isinstance(node, Instruction):
            return
        accesses = (access for leaf in leaves((node,)) for access in leaf.accesses())
        buffers = {access.buffer.name: access.buffer for access in accesses}
        own = [buffer for name, buffer in buffers.items() if buffer.on_chip and name not in known]
        used = [
            buffer for buffer in own if buffer.memory is Memory.PSUM and buffer.address is not None
        ]
        nbytes = _most(lives((node,), own))
        size = self.core.psum.bank_bytes
        first = min(((buffer.address or 0) // size for buffer in used), default=0)
        last = max(
            (-(-((buffer.address or 0) + buffer.extent) // size) for buffer in used), default=0
        )
        yield Tile(f"{index}", last - first, nbytes, (index,), first)

    def banks(self, tile: Buffer) -> int:
        """Banks that a tile takes, whole ones for every slot; 0: it is not in PSUM."""
        if tile.memory is not Memory.PSUM:
            return 0
        return tile.slots * -(-tile.slot_bytes // self.core.psum.bank_bytes)

    def placed(self, tile: Buffer, bank: int) -> Buffer:
        """A tile of PSUM from a bank on."""
        size = self.core.psum.bank_bytes
        stride = -(-tile.slot_bytes // size) * size if tile.slots > 1 else None
        return dataclasses.replace(tile, address=bank * size, slot_stride=stride)


def renamings(
    nodes: Nodes, variable: str | None, free: Tiles, spare: int, slots: Sequence[int]
) -> Iterator[Renamed]:
    """Nodes on other tiles that take `spare` more bytes at most, the best way first.

    Tiles have so many slots for the iterations of a loop; where that takes too much memory, results
    lie in the place of operands, unless even then tiles would share memory in ways that clocks do
    not see.
    """
    for count in slots:
        yield from _fitting(renamed(nodes, free, variable, count), free, max(0, spare))
        placed, left = in_place(nodes, free)
        if placed is not nodes:
            new = renamed(placed, left, variable, count)
            new.gone |= free.keys() - left.keys()
            yield from _fitting(new, free, spare)


def _fitting(new: Renamed, free: Tiles, spare: int) -> Iterator[Renamed]:
    old = sum(nbytes_of(free[name]) for name in new.gone)
    if sum(map(nbytes_of, new.new.values())) - old <= spare:
        yield new


def nbytes_of(tile: Buffer) -> int:
    """Bytes of each partition of SBUF that a tile takes."""
    return tile.extent + _ALIGNMENT if tile.memory is Memory.SBUF else 0


def _queued(node: Node, queue: int | None) -> Node:
    """A transfer on a queue."""
    if not isinstance(node, DmaInstruction) or queue in (None, node.queue):
        return node
    return dataclasses.replace(node, queue=queue)


def _most(held: Mapping[Buffer, Life]) -> int:
    """Bytes of each partition of SBUF that are taken at a time, at most."""
    changes: dict[int, int] = {}
    for tile, (first, last) in held.items():
        changes[first] = changes.get(first, 0) + nbytes_of(tile)
        changes[last + 1] = changes.get(last + 1, 0) - nbytes_of(tile)
    totals = itertools.accumulate(change for _, change in sorted(changes.items()))
    return max(totals, default=0)
