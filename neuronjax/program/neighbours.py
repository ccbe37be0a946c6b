"""Kernels that may run at a time, and what of them conflicts.

Kernels run in the order of the program; which ones come before a kernel, and how many kernels back,
follows from loops and calls. Conflicts are those of whole buffers: areas of memory that two kernels
touch, at least one of them writing. What a kernel's stream does with a buffer is over with the last
of its instructions there that touches it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from neuronjax.program.instruction import After, Instruction
from neuronjax.program.operand import Access, Buffer, Memory, Register
from neuronjax.program.program import (
    Call,
    Function,
    If,
    Kernel,
    Loop,
    Node,
    Program,
    Split,
    While,
)
from neuronjax.program.streams import completing, is_static, on_core, starting
from neuronjax.program.walk import leaves


class Moment(NamedTuple):
    """A moment in a stream of kernels before, as `After` has it: a smaller one comes later."""

    back: int
    left: int


NEVER = Moment(1 << 30, 0)
"""A moment before all others."""


def moment(after: After) -> Moment:
    """What of its stream an instruction waits for."""
    return Moment(after.back, after.left)


Conflicts = dict[tuple[int, bool], dict[str, Moment]]
"""The moments in streams of kernels before until which others touch a buffer, by its number and
whether it is written."""
_NUMBERS = {memory: number for number, memory in enumerate(Memory)}
_APART = 1 << 48
"""Bytes between buffers that have no addresses."""


@dataclass(eq=False, slots=True)
class Site:
    """A place at which kernels run, one on each physical core, with the buffers of its call.

    `before` are the sites that may come right before it, without a rest between.
    """

    number: int
    kernels: tuple[Kernel, ...]
    overlaps: int
    names: Mapping[str, Buffer]
    before: set[int] = field(default_factory=set)


def sites(program: Program) -> list[Site]:
    """All sites, in the order of the program; calls are followed."""
    walker = _Walker({function.name: function for function in program.functions})
    walker.nodes(program.body, frozenset(), {})
    return walker.sites


def back(sites: list[Site], site: Site, most: int) -> Iterator[tuple[int, int]]:
    """Numbers of the sites before one, and how many kernels back they are, up to `most`."""
    near = site.before
    for distance in range(1, most + 1):
        yield from ((number, distance) for number in sorted(near))
        near = {before for number in near for before in sites[number].before}


@dataclass(slots=True)
class _Walker:
    functions: Mapping[str, Function]
    sites: list[Site] = field(default_factory=list)
    #: Sites that begin when a register has decided.
    rested: set[int] = field(default_factory=set)

    def nodes(
        self, nodes: tuple[Node, ...], last: frozenset[int] | None, names: Mapping[str, Buffer]
    ) -> frozenset[int] | None:
        """What may come right before what follows; None: all is over by then."""
        for node in nodes:
            if isinstance(node, Kernel | Split):
                last = self.site(node, last, names)
            elif isinstance(node, Call):
                function = self.functions[node.function]
                given = [names.get(buffer.name, buffer) for buffer in node.arguments]
                own = {p.name: b for p, b in zip(function.parameters, given, strict=True)}
                last = self.nodes(function.body, last, own)
            elif isinstance(node, Loop):
                last = self.loop(node, last, names)
            elif isinstance(node, While):
                self.asked(node, last, names)
                last = None
            elif isinstance(node, If):
                ends = [self.nodes(body, None, names) for body in (node.then, node.otherwise)]
                last = frozenset().union(*(end or () for end in ends))
        return last

    def loop(
        self, node: Loop, last: frozenset[int] | None, names: Mapping[str, Buffer]
    ) -> frozenset[int] | None:
        first = len(self.sites)
        if not isinstance(node.trips, int):
            last = frozenset()
        last = self.nodes(node.body, last, names)
        if first < len(self.sites) and first not in self.rested and node.trips != 1:
            self.sites[first].before |= last or set()
        return last

    def asked(self, node: While, last: frozenset[int] | None, names: Mapping[str, Buffer]) -> None:
        """The condition follows what is before the loop, and its body; the body begins at rest."""
        first = len(self.sites)
        self.nodes(node.condition, last, names)
        within = len(self.sites)
        end = self.nodes(node.body, None, names)
        if first < within and first not in self.rested:
            self.sites[first].before |= end or set()

    def site(
        self, node: Kernel | Split, last: frozenset[int] | None, names: Mapping[str, Buffer]
    ) -> frozenset[int]:
        number = len(self.sites)
        if last is None:
            self.rested.add(number)
        kernels = node.kernels if isinstance(node, Split) else (node,)
        self.sites.append(Site(number, kernels, node.overlaps, names, set(last or ())))
        return frozenset((number,))


@dataclass(frozen=True, slots=True)
class Touched:
    """An instruction: its engine, the stream that it completes in, and the buffers it touches, by
    their numbers, with whether it writes."""

    instruction: Instruction
    engine: str
    stream: str
    uses: tuple[tuple[int, bool], ...]

    def comes_after(self, conflicts: Conflicts, core: int) -> dict[str, Moment]:
        """Streams that it conflicts with, on a physical core, and until when.

        Its own, and its engine, are in order anyway.
        """
        in_order = on_core(self.engine, core), on_core(self.stream, core)
        nearest: dict[str, Moment] = {}
        for use in self.uses:
            for stream, until in conflicts.get(use, {}).items():
                if stream not in in_order:
                    nearest[stream] = min(until, nearest.get(stream, NEVER))
        return nearest


@dataclass(eq=False, slots=True)
class Usage:
    """What a kernel touches."""

    buffers: list[Buffer] = field(default_factory=list)
    own: frozenset[str] = frozenset()
    instructions: list[Touched] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)
    #: [stream]: how many instructions it has.
    lengths: list[int] = field(default_factory=list)
    #: [buffer, stream]: after how many of them it has read, or written, the buffer; 0: never.
    reads: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), int))
    writes: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), int))


def outside_registers(kernel: Kernel) -> set[str]:
    """Registers that a kernel reads and kernels before it set."""
    outside: set[str] = set()
    written: set[str] = set()
    for instruction in leaves(kernel.body):
        read = (operand for operand in instruction.reads() if isinstance(operand, Register))
        outside |= {register.name for register in read} - written
        set_ = (operand for operand in instruction.writes() if isinstance(operand, Register))
        written |= {register.name for register in set_}
    return outside


def usage(kernel: Kernel) -> Usage:
    """What a kernel touches, instruction by instruction."""
    numbers: dict[str, int] = {}
    streams: dict[str, int] = {}
    made = Usage(own=frozenset(buffer.name for buffer in kernel.buffers))
    for instruction in leaves(kernel.body):
        uses: dict[tuple[int, bool], None] = {}
        for use in instruction.uses():
            if isinstance(use.operand, Access):
                buffer = use.operand.buffer
                number = numbers.setdefault(buffer.name, len(numbers))
                if number == len(made.buffers):
                    made.buffers.append(buffer)
                uses[number, use.role.is_write] = None
        stream = completing(instruction)
        streams.setdefault(stream, len(streams))
        made.instructions.append(Touched(instruction, starting(instruction), stream, tuple(uses)))
    made.streams = list(streams)
    made.lengths = [0] * len(streams)
    made.reads = np.zeros((len(numbers), len(streams)), int)
    made.writes = np.zeros((len(numbers), len(streams)), int)
    for touched in made.instructions:
        stream_number = streams[touched.stream]
        made.lengths[stream_number] += 1
        for number, is_write in touched.uses:
            side = made.writes if is_write else made.reads
            side[number, stream_number] = made.lengths[stream_number]
    if not is_static(kernel.body):
        for side in (made.reads, made.writes):
            side[:] = np.where(side > 0, made.lengths, 0)
    return made


class Neighbours:
    """The conflicts between kernels of a program that may run at a time."""

    def __init__(self, program: Program) -> None:
        self.sites = sites(program)
        self._roots = {alias.buffer: alias.of for alias in program.aliases}
        self._usages: dict[int, Usage] = {}
        self._areas: dict[tuple[int, int], np.ndarray] = {}
        self._homes: dict[object, int] = {}

    def usage(self, kernel: Kernel) -> Usage:
        known = self._usages.get(id(kernel))
        if known is None:
            known = self._usages[id(kernel)] = usage(kernel)
        return known

    def conflicts(self, most: int) -> Iterator[tuple[Kernel, int, Conflicts]]:
        """Kernels, their physical cores, and what conflicts with up to `most` before them.

        A kernel that runs on several cores comes once for each.
        """
        known: dict[tuple[int, int], tuple[Kernel, int, Conflicts]] = {}
        seen: set[object] = set()
        for site in self.sites:
            for core, kernel in enumerate(site.kernels):
                _, _, own = known.setdefault((id(kernel), core), (kernel, core, {}))
                for number, distance in back(self.sites, site, most):
                    self._add(own, site, core, self.sites[number], distance, seen)
        yield from known.values()

    def needed(self, kernel: Kernel, core: int, own: Conflicts) -> list[tuple[After, ...]]:
        """What each instruction of a kernel comes after, beside those on its engine before it."""
        known: dict[str, dict[str, Moment]] = {}
        needed = []
        for touched in self.usage(kernel).instructions:
            seen = known.setdefault(touched.engine, {})
            wanted = {
                stream: until
                for stream, until in touched.comes_after(own, core).items()
                if seen.get(stream, NEVER) > until
            }
            seen.update(wanted)
            needed.append(tuple(After(stream, *until) for stream, until in sorted(wanted.items())))
        return needed

    def stored(self, most: int) -> dict[tuple[int, int], set[str]]:
        """The buffers in HBM that kernels before may still write, by id of a kernel and physical
        core; `most` of those may run at the same time."""
        stored: dict[tuple[int, int], set[str]] = {}
        for site in self.sites:
            for core, kernel in enumerate(site.kernels):
                seen = self.usage(kernel).buffers
                names = stored.setdefault((id(kernel), core), set())
                for number, _ in back(self.sites, site, most):
                    other = self.sites[number]
                    for at, before in enumerate(other.kernels):
                        meets = _meets(self._area(site, core), self._area(other, at))
                        written = meets @ (self.usage(before).writes > 0).any(axis=1)
                        names.update(
                            buffer.name
                            for buffer, is_written in zip(seen, written, strict=True)
                            if is_written and buffer.memory is Memory.HBM
                        )
        return stored

    def _add(
        self,
        own: Conflicts,
        site: Site,
        core: int,
        other: Site,
        distance: int,
        seen: set[object],
    ) -> None:
        """Notes what in streams of another site a kernel's reads and writes of buffers wait for.

        Kernels that meet as they have been `seen` to do in another call are passed over.
        """
        mine = self._area(site, core)
        for at, kernel in enumerate(other.kernels):
            meets = _meets(mine, self._area(other, at))
            pair = id(site.kernels[core]), core, id(kernel), at, distance, meets.tobytes()
            if pair in seen or not meets.any():
                continue
            seen.add(pair)
            theirs = self.usage(kernel)
            after_read = _last(meets, theirs.writes)
            after_write = np.maximum(after_read, _last(meets, theirs.reads))
            for is_write, waits in ((False, after_read), (True, after_write)):
                for number, stream in np.argwhere(waits).tolist():
                    streams = own.setdefault((number, is_write), {})
                    name = on_core(theirs.streams[stream], at)
                    until = Moment(distance, theirs.lengths[stream] - int(waits[number, stream]))
                    streams[name] = min(until, streams.get(name, NEVER))

    def _area(self, site: Site, core: int) -> np.ndarray:
        """Memory, first and last byte, first and last partition of a kernel's buffers."""
        key = site.number, core
        if key not in self._areas:
            kernel = site.kernels[core]
            seen = self.usage(kernel)
            rows = [self._row(buffer, site, core, seen, kernel) for buffer in seen.buffers]
            self._areas[key] = np.array(rows, np.int64).reshape(-1, 5)
        return self._areas[key]

    def _row(
        self, buffer: Buffer, site: Site, core: int, seen: Usage, kernel: Kernel
    ) -> tuple[int, ...]:
        is_own = buffer.name in seen.own
        if not is_own:
            buffer = site.names.get(buffer.name, buffer)
        memory = _NUMBERS[buffer.memory]
        if buffer.memory is not Memory.HBM:
            memory += len(_NUMBERS) * core
        start = buffer.address
        if start is None:
            name = buffer.name
            while self._roots.get(name, name) != name:
                name = self._roots[name]
            home = (id(kernel), name) if is_own else name
            start = _APART * (1 + self._homes.setdefault(home, len(self._homes)))
        lanes = (buffer.partition, buffer.partition + buffer.partitions)
        return memory, start, start + buffer.extent, *lanes


def _last(meets: np.ndarray, sides: np.ndarray) -> np.ndarray:
    """[mine, stream]: after how many instructions a stream is through with what meets it."""
    last: np.ndarray = np.where(meets[:, :, None], sides, 0).max(axis=1, initial=0)
    return last


def _meets(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """[mine, theirs]: which areas overlap."""
    memory, first, end, low, high = (mine[:, None, column] for column in range(5))
    other, other_first, other_end, other_low, other_high = theirs.T
    overlaps: np.ndarray = (
        (memory == other)
        & (first < other_end)
        & (other_first < end)
        & (low < other_high)
        & (other_low < high)
    )
    return overlaps
