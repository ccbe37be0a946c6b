"""A program that the chip takes, with addresses and semaphores, made of the traces of a kernel's
programs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neuronjax.engine_compiler import prices_of
from neuronjax.errors import (
    DeviceMemoryError,
    KernelError,
    OnChipMemoryError,
    PsumOverflowError,
    SbufOverflowError,
)
from neuronjax.lower.memory.allocate import allocate
from neuronjax.lower.schedule.interleave import interleaved
from neuronjax.lower.sync.synchronise import synchronise
from neuronjax.lower.write.rebuild import on_buffers
from neuronjax.nki.beside import beside
from neuronjax.nki.early_reads import with_early_reads
from neuronjax.nki.late_loads import LOADS, PREPARATIONS, with_late
from neuronjax.nki.queues import in_turn
from neuronjax.nki.rolling import Rolling, Written
from neuronjax.nki.sums import with_groups
from neuronjax.nki.tracing import Trace
from neuronjax.program import program
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Buffer
from neuronjax.program.user_lines import lines_by_path, with_lines, without_names
from neuronjax.program.verify import UNORDERED, verify
from neuronjax.program.walk import instructions

_MOST_FINDINGS = 10


@dataclass(frozen=True)
class _Measures:
    """What is done for tiles that do not fit in the kernel's own order."""

    #: Instructions that wait until their results are used.
    late: tuple[type[Instruction], ...] = ()
    #: Tiles of few partitions lie beside each other.
    is_beside: bool = False
    #: What reads PSUM comes as soon as it can.
    is_early: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        """What to say about them."""
        taken = (bool(self.late), self.is_beside, self.is_early)
        return tuple(note for note, holds in zip(_NOTES, taken, strict=True) if holds)


_NOTES = (
    "loads wait until they are used, since the tiles would not fit into SBUF otherwise",
    "tiles of few partitions lie beside each other, since they would not fit into SBUF otherwise",
    "results leave PSUM as soon as they are complete, since the tiles would not fit into it "
    "otherwise",
)
_FOR_SBUF = (
    _Measures(late=LOADS),
    _Measures(late=PREPARATIONS),
    _Measures(is_beside=True),
    _Measures(late=PREPARATIONS, is_beside=True),
)
"""What is tried where SBUF is short, one after the other."""


@dataclass(frozen=True)
class Grid:
    """All programs of a kernel; `buffers` lie in HBM."""

    name: str
    traces: Sequence[Trace]
    buffers: tuple[Buffer, ...]
    aliases: tuple[program.Alias, ...]
    declared: Mapping[str, str]
    #: Tensors of private memory that are returned, as results.
    promoted: Mapping[str, Buffer]

    @functools.cached_property
    def _written(self) -> list[Written]:
        """The instructions of each trace in their own order, with the groups of their sums."""
        return [Written(trace, with_groups(trace.instructions)) for trace in self.traces]

    def written_out(self, measures: _Measures) -> program.Program:
        """The program without addresses, semaphores, and loops but those over registers."""
        kernels = []
        for trace, written in zip(self.traces, self._written, strict=True):
            order = with_early_reads(trace) if measures.is_early else trace.instructions
            if measures.late:
                order = with_late(measures.late, order, trace, self.traces)
            if order is not trace.instructions:
                written = Written(trace, with_groups(order))
            body = Rolling(written, slots=0).body()
            tiles = tuple(buffer for buffer in trace.buffers if buffer.on_chip)
            kernel = self._kernel(trace, body, tiles)
            kernels.append(beside(kernel, trace) if measures.is_beside else kernel)
        return self._program(kernels)

    def rolled(self, slots: int) -> tuple[program.Program | None, tuple[str, ...]]:
        """The program with loops, and what to note; None: no loop is one."""
        kernels, notes, has_loops = [], {}, False
        for written in self._written:
            rolling = Rolling(written, slots)
            body = rolling.body()
            notes.update(dict.fromkeys(rolling.notes))
            has_loops |= any(isinstance(node, program.Loop) for node in body)
            kernels.append(self._kernel(written.trace, body, rolling.buffers(body)))
        return self._program(kernels) if has_loops else None, tuple(notes)

    def reordered(self, made: program.Program) -> program.Program:
        """The program with its instructions in a faster order, if the kernel leaves that to the
        compiler."""
        if not all(trace.may_reorder for trace in self.traces):
            return made
        return interleaved(made, prices_of(made))

    def _kernel(
        self, trace: Trace, nodes: tuple[program.Node, ...], tiles: tuple[Buffer, ...]
    ) -> program.Kernel:
        kernel = program.Kernel(
            name=f"{self.name} {trace.program}" if len(self.traces) > 1 else self.name,
            body=in_turn(nodes),
            buffers=tiles,
            parts=tuple(program.Part(self.name, sources=(line,)) for line in trace.lines),
        )
        return on_buffers(kernel, self.promoted) if self.promoted else kernel

    def _program(self, kernels: Sequence[program.Kernel]) -> program.Program:
        registers = {register for trace in self.traces for register in trace.registers}
        split = program.Split(name=self.name, kernels=tuple(kernels))
        tiles = (tile for kernel in kernels for tile in kernel.buffers)
        names = {buffer.name for buffer in (*self.buffers, *tiles)}
        return program.Program(
            name=self.name,
            target=program.Target(self.traces[0].chip, len(self.traces)),
            body=(split,) if len(kernels) > 1 else tuple(kernels),
            buffers=self.buffers,
            registers=tuple(sorted(registers, key=lambda register: register.name)),
            aliases=tuple(alias for alias in self.aliases if {alias.buffer, alias.of} <= names),
            ranks=max(trace.ranks for trace in self.traces),
        )


_PAUSES = (128, 32, 8)
"""How many instructions a tile's memory best rests before another tile lies there: engines and
queues run so far ahead of each other."""

_SLOTS = (4, 2, 1)
"""Places for a tile that a round of a loop makes: the most for which there is room."""


def assembled(grid: Grid) -> tuple[program.Program, tuple[str, ...]]:
    """The program with loops if the chip takes it, else without, and notes why.

    Raises: KernelError: the chip refuses it; OnChipMemoryError, DeviceMemoryError: its tensors do
    not fit.
    """
    try:
        return _assembled(grid)
    except (OnChipMemoryError, DeviceMemoryError) as error:
        raise type(error)(with_lines(str(error), grid.declared)) from None


def _assembled(grid: Grid) -> tuple[program.Program, tuple[str, ...]]:
    notes: tuple[str, ...] = ()
    has_loops = any(trace.loops for trace in grid.traces)
    for slots in _SLOTS if has_loops else ():
        rolled, notes = grid.rolled(slots)
        if rolled is None:
            break
        try:
            finished = synchronise(allocate(grid.reordered(rolled), pauses=_PAUSES))
        except OnChipMemoryError as error:
            notes = (f"{grid.name}: loops are written out: {error}",)
            continue
        checked = _Checked.of(grid, finished)
        if not checked.refused and not checked.stale:
            return finished, (*notes, *checked.advice)
        reason = (*checked.refused, *checked.stale)[0]
        notes = (f"{grid.name}: loops are written out: {reason}",)
        break
    allocated, measures = _allocated(grid)
    finished = synchronise(allocated)
    notes += tuple(f"{grid.name}: {note}" for note in measures.notes)
    checked = _Checked.of(grid, finished)
    if checked.refused:
        shown = "\n".join(f"  {finding}" for finding in checked.refused[:_MOST_FINDINGS])
        raise KernelError(
            f"{grid.name} is not a valid program for {finished.target.chip}:\n{shown}"
        )
    return finished, (*notes, *checked.advice)


def _allocated(grid: Grid) -> tuple[program.Program, _Measures]:
    """The program that is written out, with addresses, and what was done for that. Raises
    ``OnChipMemoryError``: what was short in the kernel's own order."""
    measures, others = _Measures(), list(_FOR_SBUF)
    first: OnChipMemoryError | None = None
    while True:
        try:
            written = grid.reordered(grid.written_out(measures))
            return allocate(written, pauses=_PAUSES), measures
        except OnChipMemoryError as error:
            first = first or error
            if isinstance(error, SbufOverflowError) and others:
                measures = dataclasses.replace(others.pop(0), is_early=measures.is_early)
            elif isinstance(error, PsumOverflowError) and not measures.is_early:
                measures = dataclasses.replace(measures, is_early=True)
            else:
                raise first from None


_UNWRITTEN = "uninitialised"
ADVICE: Mapping[str, str] = {
    UNORDERED: "results depend on their order unless values agree",
    _UNWRITTEN: "such values are arbitrary, and results must not depend on them",
}
"""Rule that no compiler checks, and that right programs may break -> what to mind."""


@dataclass(frozen=True)
class _Checked:
    """What the chip would refuse, and what to note, by the kernel's lines."""

    refused: Sequence[str]
    advice: Sequence[str]
    #: Where loops read tiles that nothing has written: there is what an iteration before has left.
    stale: Sequence[str]

    @classmethod
    def of(cls, grid: Grid, finished: program.Program) -> _Checked:
        lines = {**lines_by_path(finished), **grid.declared}
        refused: dict[str, str] = {}
        advice: dict[str, str] = {}
        unwritten = set()
        for finding in verify(finished):
            is_advice = finding.rule in ADVICE
            text = str(finding)
            if is_advice:
                what = f"{finding.path}: {finding.actual}; {ADVICE[finding.rule]}."
                text = f"{grid.name}: {what}"
            place = without_names(text, lines)
            (advice if is_advice else refused).setdefault(place, with_lines(text, lines))
            if finding.rule == _UNWRITTEN:
                unwritten.add(finding.path)
        places = instructions(finished) if unwritten else ()
        stale = [
            with_lines(f"{place.path}: a tile is read where nothing has been written", lines)
            for place, _ in places
            if place.loops and place.path in unwritten
        ]
        return cls([*refused.values()], [*advice.values()][:_MOST_FINDINGS], stale)
