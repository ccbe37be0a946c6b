"""Loops of a kernel: written out while it is traced, and then put together where they are uniform.

Python runs every iteration, so that indices are integers and any Python works. The rounds of a loop
whose instructions differ in nothing but addresses that advance by equal steps (`outlines`) become
one round of a `Loop`, with the tiles that a round makes in turns. A first or last round that
differs is peeled off. What is not uniform stays written out; a note says why.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from neuronjax.nki.loop_marks import LoopMarks, Mark
from neuronjax.nki.merging import Merging
from neuronjax.nki.outlines import Flags, NotUniformError, Numbers, Outlines
from neuronjax.nki.queues import QUEUES
from neuronjax.nki.tracing import Trace
from neuronjax.program.dma import DmaInstruction
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Kind, Register
from neuronjax.program.program import Loop, Node


@dataclass(frozen=True)
class Written:
    """The instructions of a trace in some order."""

    trace: Trace
    instructions: Sequence[Instruction]

    @functools.cached_property
    def outlines(self) -> Outlines:
        """What rounds of loops are compared by."""
        return Outlines(self.trace, self.instructions)

    @functools.cached_property
    def last(self) -> Mapping[str, int]:
        """Tile or register -> the last instruction that uses it."""
        last: dict[str, int] = {}
        for place, instruction in enumerate(self.instructions):
            for use in instruction.uses():
                if isinstance(use.operand, Access):
                    last[use.operand.buffer.name] = place
                    last |= dict.fromkeys((entry.name for entry in use.operand.registers), place)
                elif isinstance(use.operand, Register):
                    last[use.operand.name] = place
        return last

    @functools.cached_property
    def is_in_hbm(self) -> Flags:
        """Whether each tensor of the trace is no tile."""
        tensors = self.trace.buffers
        return np.array([b.kind is not Kind.SCRATCH or not b.on_chip for b in tensors], np.bool_)

    @functools.cached_property
    def tile_ends(self) -> Numbers:
        """The last instruction that uses each tensor of the trace; -1: none does."""
        return np.array([self.last.get(b.name, -1) for b in self.trace.buffers], np.int64)

    @functools.cached_property
    def register_ends(self) -> Numbers:
        """The last instruction that uses each register of the trace; -1: none does."""
        return np.array([self.last.get(r.name, -1) for r in self.trace.registers], np.int64)


@dataclass
class Rolling:
    """Puts loops together; the tiles have up to `slots` places each. Without slots, only loops that
    a register decides about are loops."""

    written: Written
    slots: int
    notes: list[str] = field(default_factory=list)
    #: Loops about the present one that are written out.
    _written_out: int = 0

    def __post_init__(self) -> None:
        self.trace, self.instructions = self.written.trace, self.written.instructions

    def body(self) -> tuple[Node, ...]:
        """The kernel's nodes."""
        return self._nodes(0, len(self.instructions), self.trace.loops, "i")

    def buffers(self, body: Sequence[Node]) -> tuple[Buffer, ...]:
        """The tiles of a kernel with this body, and those that no instruction touches."""
        touched: dict[str, Buffer] = {}
        for instruction in _instructions(body):
            touched |= {access.buffer.name: access.buffer for access in instruction.accesses()}
        return tuple(
            touched.get(buffer.name, buffer)
            for buffer in self.trace.buffers
            if buffer.on_chip and (buffer.name in touched or buffer.name not in self.written.last)
        )

    def _nodes(
        self, first: int, last: int, loops: Sequence[LoopMarks], prefix: str
    ) -> tuple[Node, ...]:
        nodes: list[Node] = []
        for number, loop in enumerate(loops):
            if loop.rounds:
                nodes += self.instructions[first : loop.rounds[0].instructions]
                about = self._loop if loop.trips is None else self._register_loop
                nodes += about(loop, f"{prefix}{number}")
                first = loop.end.instructions
        return (*nodes, *self.instructions[first:last])

    def _register_loop(self, loop: LoopMarks, prefix: str) -> Sequence[Node]:
        (begin,) = loop.rounds
        body = self._nodes(begin.instructions, loop.end.instructions, begin.loops, f"{prefix}_")
        assert loop.trips is not None
        return (Loop(variable=loop.variable, trips=loop.trips, body=body),)

    def _loop(self, loop: LoopMarks, variable: str) -> Sequence[Node]:
        rounds = list(zip(loop.rounds, [*loop.rounds[1:], loop.end], strict=True))
        names = [f"{variable}_{number}_" for number in range(len(rounds))]
        if len(rounds) == 1 or not self.slots or loop.is_static:
            return self._written(rounds, names)
        reason: NotUniformError | None = None
        for first, last in _peeled(len(rounds)):
            noted = len(self.notes)
            try:
                uniform = self._uniform(loop, rounds[first:last], variable, names[first:last])
            except NotUniformError as error:
                reason = reason or error
                del self.notes[noted:]
                continue
            return (
                *self._written(rounds[:first], names[:first]),
                *uniform,
                *self._written(rounds[last:], names[last:]),
            )
        if loop.is_marked or not self._written_out:
            self.notes.append(f"{loop.line}: the loop is written out: {reason}.")
        self._written_out += 1
        nodes = self._written(rounds, names)
        self._written_out -= 1
        return nodes

    def _places(self, loop: LoopMarks) -> int:
        """Places for a tile that a round makes. The compiler of the earlier dialect gave several in
        loops of NKI alone; a range of Python reached it written out, each round's tiles in the
        first free place, which is where those of the round before lay."""
        return 1 if self.trace.may_reorder and not loop.is_marked else self.slots

    def _written(self, rounds: Sequence[_Round], names: Sequence[str]) -> list[Node]:
        """The nodes of some rounds behind each other."""
        return [node for nodes in self._bodies(rounds, names) for node in nodes]

    def _bodies(self, rounds: Sequence[_Round], names: Sequence[str]) -> list[tuple[Node, ...]]:
        return [
            self._nodes(begin.instructions, end.instructions, begin.loops, name)
            for (begin, end), name in zip(rounds, names, strict=True)
        ]

    def _uniform(
        self, loop: LoopMarks, rounds: Sequence[_Round], variable: str, names: Sequence[str]
    ) -> Sequence[Node]:
        """Some rounds as one loop, if they have instructions; what is left of them, and rounds that
        are too few for a loop, behind each other, with `names` for the loops within them.

        NotUniformError: they are none.
        """
        if not loop.is_complete:
            raise NotUniformError("it is left early")
        self._check_lives(rounds)
        has_flags = self.written.outlines.check(rounds)
        places = self._places(loop)
        copies = min(_copies(self._written(rounds[:1], names[:1])), places)
        trips, left = divmod(len(rounds), copies)
        if trips < 2:
            return self._written(rounds, names)
        whole = len(rounds) - left
        slots = max(1, min(whole, places) // copies)
        body = self._body(rounds[:whole], variable, copies, slots, has_flags)
        rest = self._written(rounds[whole:], names[whole:])
        return (Loop(variable=variable, trips=trips, body=body), *rest) if body else ()

    def _body(
        self, rounds: Sequence[_Round], variable: str, copies: int, slots: int, has_flags: bool
    ) -> tuple[Node, ...]:
        """The body of a loop of so many of the rounds in a trip, and so many places for a tile.
        Trips that advance by equal steps are told by the first two, and flags by the last."""
        last = len(rounds) // copies - 1
        told = sorted({0, 1, last}) if has_flags else [0, 1]
        begin, end = rounds[0][0], rounds[copies - 1][1]
        own = {buffer.name for buffer in self.trace.buffers[begin.buffers : end.buffers]}
        names = [f"{variable}_copy{number}_" for number in range(copies)]
        bodies = [
            tuple(self._written(rounds[copies * trip : copies * (trip + 1)], names))
            for trip in told
        ]
        body: tuple[Node, ...] = Merging(variable, slots, told, own).merged(bodies, "the body")
        return body

    def _check_lives(self, rounds: Sequence[_Round]) -> None:
        """``NotUniformError`` if what a round makes does not end with it."""
        written, ends = self.written, [end.instructions for _, end in rounds]
        begin, end = rounds[0][0], rounds[-1][1]
        tiles = [later.buffers - first.buffers for first, later in rounds]
        if written.is_in_hbm[begin.buffers : end.buffers].any():
            raise NotUniformError("it creates tensors in HBM")
        if (written.tile_ends[begin.buffers : end.buffers] >= np.repeat(ends, tiles)).any():
            raise NotUniformError("a tile is used after the iteration that creates it")
        registers = [later.registers - first.registers for first, later in rounds]
        last = written.register_ends[begin.registers : end.registers]
        if (last >= np.repeat(ends, registers)).any():
            raise NotUniformError("a register is used after the iteration that creates it")


_Round = tuple[Mark, Mark]
"""Where a round begins and ends."""


def _peeled(rounds: int) -> list[tuple[int, int]]:
    """The first and the last round of what may be a loop: all, then all but some at its ends. Any
    two advance by equal steps, so there have to be three of these."""
    ends = [(0, rounds - 1), (1, rounds), (1, rounds - 1)]
    return [(0, rounds), *((first, last) for first, last in ends if last - first > 2)]


def _copies(body: Sequence[Node]) -> int:
    """How many iterations one trip has, so that transfers take turns between all queues, of which
    each instruction has one."""
    kinds = Counter(
        instruction.queue
        for instruction in _instructions(body)
        if isinstance(instruction, DmaInstruction)
    )
    return max(1, QUEUES // min(kinds.values())) if kinds else 1


def _instructions(nodes: Sequence[Node]) -> Iterator[Instruction]:
    for node in nodes:
        if isinstance(node, Loop):
            yield from _instructions(node.body)
        elif isinstance(node, Instruction):
            yield node
