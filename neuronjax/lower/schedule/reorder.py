"""The reordering of a kernel: loops written out or entered in the middle, lists arranged anew."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from neuronjax.lower.memory.lifetimes import carried, lives
from neuronjax.lower.schedule.arrange import Arranger, nbytes_of, renamings
from neuronjax.lower.schedule.clocks import Timer
from neuronjax.lower.schedule.greedy import Room
from neuronjax.lower.schedule.pipelining import best_cut, pipelined
from neuronjax.lower.schedule.renaming import Renamed
from neuronjax.lower.schedule.unroll import shortened, unrolled
from neuronjax.lower.tuning import Tuning
from neuronjax.lower.write.rebuild import same, with_body, with_tiles
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Buffer, Memory
from neuronjax.program.program import Kernel, Loop, Node, Program
from neuronjax.program.walk import leaves

Nodes = tuple[Node, ...]


class _Faster(NamedTuple):
    """A loop in some order, with what is around it now, how long it takes, and what happened to
    tiles.

    `left` are in PSUM and have no banks yet, `gone` are not used any more, `tiles` are new.
    """

    time: float
    nodes: Nodes
    left: set[str]
    gone: set[str]
    tiles: dict[str, Buffer]


class Reordering:
    """The reordering of a kernel. Lists with loops keep their order unless it `moves_loops`.

    Loops are written out although others stay in their list only if it `mixes`.

    No two tiles share memory if all are to be `is_apart`: then they are sure to find room.
    """

    def __init__(
        self, kernel: Kernel, program: Program, timer: Timer, *, mixes: bool, is_apart: bool
    ) -> None:
        self.kernel, self.timer, self.mixes, self.is_apart = kernel, timer, mixes, is_apart
        #: Whether lists are another if it `mixes`.
        self.could_mix = False
        self.moves_loops = self.has_gained = False
        #: Whether any list has loops beside other nodes, which may pass them.
        self.has_mixed = False
        self.arranger = Arranger(timer, program.target.core)
        self.tiles = {buffer.name: buffer for buffer in kernel.buffers if buffer.address is None}
        self.nodes = self.written_out(kernel.body)
        #: id of a list of nodes -> tiles that are used there only.
        self.owned: dict[int, set[str]] = {}
        for name, owner in _owners(self.nodes, self.tiles).items():
            self.owned.setdefault(id(owner), set()).add(name)
        self.rooms = _rooms(self.nodes, self.tiles, self.owned, self.arranger)
        #: id of a loop without loops in it -> that in a faster order.
        self.straight: dict[int, _Faster] = {}

    @property
    def tuning(self) -> Tuning:
        """The numbers that the compiler is free to choose."""
        return self.timer.tuning

    def run(self, moves_loops: bool) -> Kernel:
        """The kernel in another order; it `has_gained` if no earlier run has found as much."""
        tiles = self.tiles
        self.moves_loops, self.has_gained = moves_loops, False
        nodes, _ = self.line(self.nodes, None, id(self.nodes))
        names = {access.buffer.name for leaf in leaves(nodes) for access in leaf.accesses()}
        fixed = [buffer for buffer in self.kernel.buffers if buffer.address is not None]
        used = [tile for name, tile in self.tiles.items() if name in names]
        self.tiles = tiles
        return dataclasses.replace(self.kernel, body=nodes, buffers=(*fixed, *used))

    def is_idle(self, loop: Loop) -> bool:
        """Whether a loop leaves all engines idle for a while, its first and last iterations too."""
        assert isinstance(loop.trips, int)
        busy = loop.trips * self.timer.work(loop.body)
        return self.timer.job(loop).duration > self.tuning.idle_ratio * busy

    def written_out(self, nodes: Nodes) -> Nodes:
        """Nodes without the loops that are short and leave engines idle."""
        inner = tuple(
            with_body(node, self.written_out(node.body)) if isinstance(node, Loop) else node
            for node in nodes
        )
        room = dict.fromkeys({_part(node) for node in inner}, self.tuning.unrolled_instructions)
        for node in inner:
            room[_part(node)] -= isinstance(node, Instruction)
        new_nodes: list[Node] = []
        for node in inner:
            size = node.trips * len(node.body) if isinstance(node, Loop) else 0  # type: ignore[operator]
            if (
                isinstance(node, Loop)
                and size <= room[_part(node)]
                and _is_straight(node)
                and self.is_idle(node)
            ):
                assert isinstance(node.trips, int)
                new_nodes += unrolled(node, node.trips)
                room[_part(node)] -= size
            else:
                new_nodes.append(node)
        is_straight = all(isinstance(node, Instruction) for node in new_nodes)
        if not is_straight and len(new_nodes) > len(inner):
            self.could_mix = True
            return same(nodes, new_nodes if self.mixes else inner)
        return same(nodes, new_nodes)

    # Lists

    def line(self, nodes: Nodes, loop: Loop | None, key: int) -> tuple[Nodes, set[str]]:
        """A list in a faster order, and its tiles of PSUM that have no banks yet.

        `loop` is the loop about it, `key` what its tiles and its room are known by.
        """
        own = self.owned.get(key, set())
        new_nodes: list[Node] = []
        for node in nodes:
            if isinstance(node, Loop):
                inner, left = self.loop(node)
                own = own | left
                new_nodes += inner
            else:
                new_nodes.append(node)
        return self.arranged(same(nodes, new_nodes), loop, own, self.rooms[key])

    def in_psum(self, names: Iterable[str]) -> set[str]:
        """The tiles of these names that are in PSUM."""
        return {name for name in names if self.tiles[name].memory is Memory.PSUM}

    def loop(self, loop: Loop) -> tuple[Nodes, set[str]]:
        """A loop in a faster order, and its tiles of PSUM that have no banks yet."""
        if not _is_straight(loop):
            body, left = self.line(loop.body, loop, id(loop.body))
            return (with_body(loop, body),), left
        faster = self.straight.get(id(loop))
        if faster is None:
            faster = self.straight[id(loop)] = self.fastest(loop)
        kept = {name: tile for name, tile in self.tiles.items() if name not in faster.gone}
        self.tiles = {**kept, **faster.tiles}
        return faster.nodes, faster.left

    def fastest(self, loop: Loop) -> _Faster:
        """A loop without loops in it, with as many iterations in one as is best."""
        before = self.tiles
        enough = self.tuning.enough_ratio * self.arranger.least(loop.body, loop)
        best: _Faster | None = None
        for factor in self.factors(loop):
            shorter, rest = shortened(loop, loop.trips % factor)  # type: ignore[operator]
            (longer,) = unrolled(shorter, factor)
            assert isinstance(longer, Loop)
            body, left = self.line(longer.body, longer, id(loop.body))
            changed = with_body(longer, body)
            time = self.timer.job(changed).duration
            if rest:
                rest, more = self.rest(loop, rest, before)
                left, time = left | more, time + self.timer.time(rest)
            if best is None or time < self.tuning.order_share * best.time:
                best = self.change(time, (changed, *rest), left, before)
            self.tiles = before
            if best.time < enough:
                break
        assert best is not None
        if best.time >= enough:
            for overlapping in self.overlapping(loop):
                if overlapping.time < self.tuning.order_share * best.time:
                    best = overlapping
                if best.time < enough:
                    break
        return best

    def rest(
        self, loop: Loop, nodes: Nodes, before: Mapping[str, Buffer]
    ) -> tuple[Nodes, set[str]]:
        """The last iterations of a loop written out, with tiles of their own, in a faster order,
        and their tiles of PSUM. None of these has banks yet, as the instructions may move among
        those around the loop."""
        own = sorted(self.owned.get(id(loop.body), ()))
        copies = {n: dataclasses.replace(before[n], name=f"{n}_rest") for n in own}
        known = self.tiles
        self.tiles = known | {copy.name: copy for copy in copies.values()}
        names = {copy.name for copy in copies.values()}
        nodes, _ = self.arranged(with_tiles(nodes, copies), None, names, self.rooms[id(loop.body)])
        left = self.in_psum(self.tiles.keys() - known.keys())
        free = {
            name: dataclasses.replace(self.tiles[name], address=None, slot_stride=None)
            for name in sorted(left)
        }
        self.tiles = self.tiles | free
        return with_tiles(nodes, free), left

    def change(
        self, time: float, nodes: Nodes, left: set[str], before: Mapping[str, Buffer]
    ) -> _Faster:
        """What became of a loop, and of the tiles that were there before."""
        new = {name: tile for name, tile in self.tiles.items() if tile != before.get(name)}
        return _Faster(time, nodes, left, before.keys() - self.tiles.keys(), new)

    def overlapping(self, loop: Loop) -> Iterator[_Faster]:
        """A loop without loops in it whose iterations overlap, in the ways in which it can be
        cut: in the order of its body, and with the chains in it beside each other, so that all of
        them are cut in the middle."""
        if not isinstance(loop.trips, int) or loop.trips < 3:
            return  # the first and the last iteration stand before and after the loop
        before = self.tiles
        own = {name: before[name] for name in sorted(self.owned.get(id(loop.body), ()))}
        lasting = {tile.name: tile for tile in carried(loop, own.values())}
        free = {name: tile for name, tile in own.items() if name not in lasting}
        room = self.rooms[id(loop.body)]
        spare = self.spare(own, room, has_loops=False)
        new = next(renamings(loop.body, loop.variable, free, spare, (2,)), None)
        if new is None:
            return
        tiles = {name: tile for name, tile in before.items() if name not in new.gone} | new.new
        inner = (own.keys() - new.gone) | new.new.keys()
        passing = {name: tiles[name] for name in inner - lasting.keys()}
        for is_beside in (False, True):
            way: Renamed | None = new
            if is_beside:
                way = self.arranger.in_best_order(new, loop, free, lasting, room)
            if way is None:
                continue
            cut = best_cut(self.timer, way.nodes, self.in_banks(way, tiles))
            if cut is None:
                continue
            parts = pipelined(with_body(loop, way.nodes), cut, passing)
            self.tiles = tiles | parts.tiles
            body, left = self.arranged(parts.loop.body, parts.loop, inner, room)
            nodes = (*parts.prologue, with_body(parts.loop, body), *parts.epilogue)
            left = left | self.in_psum(parts.tiles)
            yield self.change(self.timer.time(nodes), nodes, left, before)
            self.tiles = before

    def in_banks(self, way: Renamed, tiles: Mapping[str, Buffer]) -> list[list[int]]:
        """The nodes that use each tile of PSUM: none of these sets may be cut."""
        return [
            sorted(nodes) for name, nodes in way.users.items() if tiles[name].memory is Memory.PSUM
        ]

    def factors(self, loop: Loop) -> list[int]:
        """How many iterations in one are tried."""
        assert isinstance(loop.trips, int)
        if not self.is_idle(loop):
            return [1]
        tuning = self.tuning
        longest = tuning.unrolled_instructions // len(loop.body)
        most = min(tuning.unroll_factor, longest, loop.trips // 2)
        best = max((n for n in range(1, most + 1) if loop.trips % n == 0), default=1)
        if 2 * best < most and not self.is_carrying(loop):
            best = most
        return [1, best] if best > 1 else [1]

    def is_carrying(self, loop: Loop) -> bool:
        """Whether an iteration of a loop leaves something to the next one in tiles of the loop."""
        own = sorted(self.owned.get(id(loop.body), ()))
        return bool(carried(loop, [self.tiles[name] for name in own]))

    # Arranging

    def spare(self, own: Mapping[str, Buffer], room: Room, *, has_loops: bool) -> int:
        """Bytes of each partition of SBUF that new tiles of a list may take beside its `own`.

        None of the tiles that are alive while it runs need share memory then; where loops in it
        have tiles, too, or tiles are to be apart, no tiles of the kernel at all.
        """
        spare = self.arranger.room.nbytes - sum(map(nbytes_of, self.tiles.values()))
        if has_loops or self.is_apart:
            return spare
        return max(spare, room.nbytes - sum(map(nbytes_of, own.values())))

    def arranged(
        self, nodes: Nodes, loop: Loop | None, own: set[str], room: Room
    ) -> tuple[Nodes, set[str]]:
        """The nodes in a faster order, and tiles of PSUM that have no banks yet."""
        left = self.in_psum(own)
        has_loops = any(isinstance(node, Loop) for node in nodes)
        self.has_mixed = self.has_mixed or (has_loops and len(nodes) > 1)
        if (has_loops and not self.moves_loops) or (len(nodes) < 2 and not left):
            return nodes, left
        tiles = {name: self.tiles[name] for name in sorted(own)}
        lasting: dict[str, Buffer] = {}
        if loop is not None:
            about = with_body(loop, nodes)
            lasting = {tile.name: tile for tile in carried(about, tiles.values())}
        free = {name: tile for name, tile in tiles.items() if name not in lasting}
        spare = self.spare(tiles, room, has_loops=has_loops)
        best = self.arranger.arranged(nodes, loop, free, lasting, room, spare)
        before = self.arranger.time(nodes, loop)
        if best is None or best.time > before:
            return nodes, left
        self.has_gained = self.has_gained or best.time < self.tuning.order_share * before
        kept = {name: tile for name, tile in self.tiles.items() if name not in best.gone}
        self.tiles = {**kept, **best.tiles}
        return best.nodes, set()


def _rooms(
    nodes: Nodes, tiles: Mapping[str, Buffer], owned: Mapping[int, set[str]], arranger: Arranger
) -> dict[int, Room]:
    """What tiles that are not its own leave to each list."""
    rooms: dict[int, Room] = {}
    held = lives(nodes, tiles.values())

    def visit(some: Nodes, first: int) -> tuple[int, set[str]]:
        position = first
        own = set(owned.get(id(some), ()))
        for node in some:
            if isinstance(node, Loop):
                position, inner = visit(node.body, position)
                own |= inner
            else:
                position += 1
        others = [
            tile
            for tile, (begin, end) in held.items()
            if tile.name not in own and begin < position and first <= end
        ]
        rooms[id(some)] = Room(
            arranger.room.banks - sum(map(arranger.banks, others)),
            arranger.room.nbytes - sum(map(nbytes_of, others)),
            arranger.room.rings,
        )
        return position, own

    visit(nodes, 0)
    return rooms


def _part(node: Node) -> int | None:
    """The part of its kernel that a node is of."""
    return next((leaf.part for leaf in leaves((node,))), None)


def _is_straight(loop: Loop) -> bool:
    return all(isinstance(node, Instruction) for node in loop.body)


def _owners(nodes: Nodes, tiles: Mapping[str, Buffer]) -> dict[str, Nodes]:
    """Tile -> the innermost list that has all of its uses."""
    owners: dict[str, tuple[Nodes, ...]] = {}

    def visit(some: Nodes, lists: tuple[Nodes, ...]) -> None:
        for node in some:
            if isinstance(node, Loop):
                visit(node.body, (*lists, node.body))
            elif isinstance(node, Instruction):
                for name in {access.buffer.name for access in node.accesses()} & tiles.keys():
                    owners[name] = _common(owners.get(name, lists), lists)

    visit(nodes, (nodes,))
    return {name: lists[-1] for name, lists in owners.items()}


def _common(lists: tuple[Nodes, ...], other: tuple[Nodes, ...]) -> tuple[Nodes, ...]:
    pairs = zip(lists, other, strict=False)
    return tuple(left for left, right in itertools.takewhile(lambda p: p[0] is p[1], pairs))
