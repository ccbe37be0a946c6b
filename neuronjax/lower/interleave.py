"""Kernels in an order that keeps engines busy: independent chains beside each other.

Engines run their instructions in order, and lowering writes one chain after the other: what waits
for another engine keeps everything behind it waiting. So loops whose iterations leave engines idle
are written out (`unroll`), tiles that hold several values one after the other become several
(`webs`), and the nodes of each list come in the order in which a simulated core takes them
(`greedy`). What is not faster by that in the simulation stays as it was.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping

from neuronjax.errors import OnChipMemoryError
from neuronjax.lower.allocate import allocate
from neuronjax.lower.arrange import Arranger, nbytes_of
from neuronjax.lower.clocks import Timer
from neuronjax.lower.greedy import Room
from neuronjax.lower.lifetimes import carried, lives
from neuronjax.lower.overlap import Overlaps
from neuronjax.lower.precedence import leaves
from neuronjax.lower.prices import Prices
from neuronjax.lower.rebuild import rebuilt, same, with_body
from neuronjax.lower.synchronise import synchronised
from neuronjax.lower.unroll import unrolled
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Buffer, Memory
from neuronjax.program.program import Function, Kernel, Loop, Node, Program

MOST_FACTOR = 8
"""Iterations that are written out at most, unless all of them are."""
MOST_MOVED = 300
"""Instructions of a kernel up to which loops change places with what is about them."""
MOST_UNROLLED = 320
"""Instructions of a list up to which loops are written out."""
WORTH = 0.99
"""Part of the time before that a new order takes at most."""
IDLE = 1.2
"""Times the busiest engine's work from which a kernel or a loop is worth looking at."""

Nodes = tuple[Node, ...]


def interleaved(program: Program, prices: Prices) -> Program:
    """The program with kernels in a faster order. Values stay the same bit by bit.

    Call it before `allocate`; tiles of PSUM in kernels that it changes get addresses.
    """
    if any(buffer.on_chip for buffer in program.buffers):
        return program
    overlaps = Overlaps(program)
    roots = {alias.buffer: alias.of for alias in program.aliases}
    bare = dataclasses.replace(program, functions=(), buffers=(), aliases=())
    finished: dict[int, Node] = {}

    def body(nodes: Nodes, function: Function | None) -> Nodes:
        overlap = overlaps.within(function)

        def shared(one: Buffer, other: Buffer) -> bool | None:
            if roots.get(one.name, one.name) == roots.get(other.name, other.name):
                return True
            return False if overlap(one, other) is False else None

        def time(kernel: Kernel) -> float | None:
            try:
                allocated = allocate(dataclasses.replace(bare, body=(kernel,)), check=False)
            except OnChipMemoryError:
                return None
            (alone,) = allocated.body
            assert isinstance(alone, Kernel)
            return prices.time(synchronised(alone, overlap))

        def change(node: Node) -> Node | None:
            if not isinstance(node, Kernel):
                return None
            if id(node) not in finished:
                finished[id(node)] = _faster(node, program, Timer(prices, shared), time)
            return finished[id(node)]

        return rebuilt(nodes, change)

    functions = tuple(
        dataclasses.replace(each, body=body(each.body, each)) for each in program.functions
    )
    return dataclasses.replace(program, functions=functions, body=body(program.body, None))


def _faster(
    kernel: Kernel, program: Program, timer: Timer, time: Callable[[Kernel], float | None]
) -> Kernel:
    """A kernel in another order, if it is faster then."""
    if not _is_plain(kernel.body):
        return kernel
    short = IDLE * timer.work(kernel.body)
    best, least = kernel, time(kernel) if timer.time(kernel.body) > short else None
    if least is None or least < short:
        return kernel
    leaf_count = sum(1 for _ in leaves(kernel.body))
    for moves_loops in (False, True) if leaf_count < MOST_MOVED else (False,):
        work = _Work(kernel, program, timer, moves_loops)
        changed = work.run()
        after = time(changed) if work.has_gained else None
        if after is not None and after < WORTH * least:
            best, least = changed, after
        if least < short:
            break
    return best


def _is_plain(nodes: Iterable[Node]) -> bool:
    return all(
        isinstance(node, Instruction)
        or (isinstance(node, Loop) and isinstance(node.trips, int) and _is_plain(node.body))
        for node in nodes
    )


class _Work:
    """One kernel. Lists with loops in them keep their order unless it `moves_loops`."""

    def __init__(self, kernel: Kernel, program: Program, timer: Timer, moves_loops: bool) -> None:
        self.kernel, self.timer, self.moves_loops = kernel, timer, moves_loops
        self.arranger = Arranger(timer, program.target.core)
        self.tiles = {each.name: each for each in kernel.buffers if each.address is None}
        #: id of a list of nodes -> tiles that are used there only.
        self.owned: dict[int, set[str]] = {}
        self.rooms: dict[int, Room] = {}
        self.has_gained = False

    def run(self) -> Kernel:
        """The kernel in another order."""
        kernel = self.kernel
        nodes = self.written_out(kernel.body)
        for name, owner in _owners(nodes, self.tiles).items():
            self.owned.setdefault(id(owner), set()).add(name)
        self.rooms = _rooms(nodes, self.tiles, self.owned, self.arranger)
        nodes, _ = self.line(nodes, None, id(nodes))
        names = {access.buffer.name for leaf in leaves(nodes) for access in leaf.accesses()}
        fixed = [each for each in kernel.buffers if each.address is not None]
        tiles = [each for name, each in self.tiles.items() if name in names]
        return dataclasses.replace(kernel, body=nodes, buffers=(*fixed, *tiles))

    def is_idle(self, loop: Loop) -> bool:
        """Whether iterations leave all engines idle for a while."""
        return self.timer.job(loop).period > IDLE * self.timer.work(loop.body)

    def written_out(self, nodes: Nodes) -> Nodes:
        """Nodes without the loops that are short and leave engines idle."""
        inner = tuple(
            with_body(node, self.written_out(node.body)) if isinstance(node, Loop) else node
            for node in nodes
        )
        room = MOST_UNROLLED - sum(isinstance(node, Instruction) for node in inner)
        found: list[Node] = []
        for node in inner:
            size = node.trips * len(node.body) if isinstance(node, Loop) else 0  # type: ignore[operator]
            if (
                isinstance(node, Loop)
                and size <= room
                and _is_straight(node)
                and self.is_idle(node)
            ):
                assert isinstance(node.trips, int)
                found += unrolled(node, node.trips)
                room -= size
            else:
                found.append(node)
        return same(nodes, found)

    # Lists

    def line(self, nodes: Nodes, loop: Loop | None, key: int) -> tuple[Nodes, set[str]]:
        """A list in a faster order, and its tiles of PSUM that have no banks yet.

        `loop` is the loop about it, `key` what its tiles and its room are known by.
        """
        own = self.owned.get(key, set())
        found: list[Node] = []
        for node in nodes:
            if isinstance(node, Loop):
                node, left = self.loop(node)
                own = own | left
            found.append(node)
        return self.arranged(same(nodes, found), loop, own, self.rooms[key])

    def in_psum(self, names: Iterable[str]) -> set[str]:
        """Those of some tiles that are in PSUM."""
        return {name for name in names if self.tiles[name].memory is Memory.PSUM}

    def loop(self, loop: Loop) -> tuple[Loop, set[str]]:
        """A loop in a faster order, and its tiles of PSUM that have no banks yet."""
        before = self.tiles
        best: tuple[float, Loop, set[str], dict[str, Buffer]] | None = None
        for factor in self.factors(loop):
            self.tiles = dict(before)
            (longer,) = unrolled(loop, factor)
            assert isinstance(longer, Loop)
            body, left = self.line(longer.body, longer, id(loop.body))
            changed = with_body(longer, body)
            time = self.timer.job(changed).duration
            if best is None or time < WORTH * best[0]:
                best = time, changed, left, self.tiles
        assert best is not None
        _, changed, left, self.tiles = best
        return changed, left

    def factors(self, loop: Loop) -> list[int]:
        """How many iterations in one are tried."""
        assert isinstance(loop.trips, int)
        if not _is_straight(loop) or not self.is_idle(loop):
            return [1]
        most = min(MOST_FACTOR, MOST_UNROLLED // len(loop.body), loop.trips // 2)
        fitting = [each for each in range(2, most + 1) if loop.trips % each == 0]
        return [1, *fitting[-1:]]

    # Arranging

    def arranged(
        self, nodes: Nodes, loop: Loop | None, own: set[str], room: Room
    ) -> tuple[Nodes, set[str]]:
        """The nodes in a faster order, and tiles of PSUM that have no banks yet."""
        left = self.in_psum(own)
        has_loops = any(isinstance(node, Loop) for node in nodes)
        if (has_loops and not self.moves_loops) or (len(nodes) < 2 and not left):
            return nodes, left
        tiles = {name: self.tiles[name] for name in sorted(own)}
        lasting: dict[str, Buffer] = {}
        if loop is not None:
            about = with_body(loop, nodes)
            lasting = {each.name: each for each in carried(about, tiles.values())}
        free = {name: each for name, each in tiles.items() if name not in lasting}
        spare = self.arranger.room.nbytes - sum(map(nbytes_of, self.tiles.values()))
        best = self.arranger.arranged(nodes, loop, free, lasting, room, spare)
        before = self.arranger.time(nodes, loop)
        if best is None or best.time > before:
            return nodes, left
        self.has_gained = self.has_gained or best.time < WORTH * before
        kept = {name: each for name, each in self.tiles.items() if name not in best.gone}
        self.tiles = {**kept, **best.tiles}
        return best.nodes, set()


def _rooms(
    nodes: Nodes, tiles: Mapping[str, Buffer], owned: Mapping[int, set[str]], arranger: Arranger
) -> dict[int, Room]:
    """By list: what tiles that are not its own leave to it."""
    found: dict[int, Room] = {}
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
        found[id(some)] = Room(
            arranger.room.banks - sum(map(arranger.banks, others)),
            arranger.room.nbytes - sum(map(nbytes_of, others)),
            arranger.room.rings,
        )
        return position, own

    visit(nodes, 0)
    return found


def _is_straight(loop: Loop) -> bool:
    return all(isinstance(node, Instruction) for node in loop.body)


def _owners(nodes: Nodes, tiles: Mapping[str, Buffer]) -> dict[str, Nodes]:
    """Tile -> the innermost list that has all of its uses."""
    found: dict[str, tuple[Nodes, ...]] = {}

    def visit(some: Nodes, lists: tuple[Nodes, ...]) -> None:
        for node in some:
            if isinstance(node, Loop):
                visit(node.body, (*lists, node.body))
            elif isinstance(node, Instruction):
                for name in {access.buffer.name for access in node.accesses()} & tiles.keys():
                    found[name] = _common(found.get(name, lists), lists)

    visit(nodes, (nodes,))
    return {name: lists[-1] for name, lists in found.items()}


def _common(one: tuple[Nodes, ...], other: tuple[Nodes, ...]) -> tuple[Nodes, ...]:
    pairs = zip(one, other, strict=False)
    return tuple(left for left, right in itertools.takewhile(lambda p: p[0] is p[1], pairs))
