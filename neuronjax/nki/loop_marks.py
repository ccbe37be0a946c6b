"""Marks of where loops of a kernel, and their iterations, begin and end in its trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType

from neuronjax.nki.python_loops import Iteration, PythonLoops
from neuronjax.program.operand import Register


@dataclass(frozen=True)
class Mark:
    """A point of a trace: how many instructions, buffers and registers it had; and loops that began
    since."""

    instructions: int
    buffers: int
    registers: int = 0
    loops: list[LoopMarks] = field(default_factory=list, compare=False)


@dataclass(eq=False)
class LoopMarks:
    """A loop of the kernel: its line, the begin of every round, and its end.

    If a register has its `trips`, it has one round, and `variable` counts them.
    """

    line: str
    rounds: list[Mark] = field(default_factory=list)
    end: Mark = Mark(0, 0)
    is_complete: bool = False
    #: Whether the kernel marks it, by functions of NKI.
    is_marked: bool = True
    #: Whether iterations may run in any order.
    is_affine: bool = False
    #: Whether the kernel asks for it to be written out.
    is_static: bool = False
    trips: Register | None = None
    variable: str = ""
    #: Of a `while`: its frame, and where its condition is.
    statement: object = None
    #: The iteration that runs, of a loop that only Python knows.
    iteration: Iteration | None = None
    #: Of a loop that the kernel marks, the frame that asks for its numbers, and the position there.
    site: tuple[FrameType, int] | None = None

    def move(self, shift: Callable[[Mark], Mark]) -> None:
        """Lets it and the loops within it begin and end elsewhere."""
        for mark in self.rounds:
            for loop in mark.loops:
                loop.move(shift)
        self.rounds[:] = map(shift, self.rounds)
        self.end = shift(self.end)


@dataclass
class Nest:
    """The loops that are open, outermost first, and all that have been; `mark` says where the trace
    is. Loops that the kernel does not mark are known by `python`."""

    mark: Callable[[], Mark]
    python: PythonLoops | None = None
    loops: list[LoopMarks] = field(default_factory=list)
    open: list[LoopMarks] = field(default_factory=list)
    #: The iterations of Python that the open loops stand for.
    _seen: list[Iteration] | None = None

    def begin(self, marks: LoopMarks) -> None:
        """Begins a loop within those that have begun."""
        (self.open[-1].rounds[-1].loops if self.open else self.loops).append(marks)
        self.open.append(marks)

    def begin_round(self, marks: LoopMarks) -> None:
        """Begins an iteration of an open loop; loops within it are over."""
        self._end_above(self.open.index(marks) + 1)
        marks.rounds.append(self.mark())

    def end(self, marks: LoopMarks) -> None:
        """Ends a loop, and those within it that were left."""
        if marks in self.open:
            self._end_above(self.open.index(marks))

    def follow(self, frame: FrameType) -> None:
        """Begins and ends loops of Python as far as the kernel has come, whose innermost frame is
        that."""
        if self.python is None:
            return
        iterations = seen = self.python.iterations(frame)
        if seen is self._seen:
            return
        sites = [marks.site for marks in self.open if marks.site is not None]
        if sites:
            iterations = [now for now in iterations if (now.frame, now.loop.start) not in sites]
        known = 0
        for depth, marks in enumerate(self.open):
            if marks.iteration is None:
                continue
            if known == len(iterations) or not marks.iteration.is_of(iterations[known]):
                self._end_above(depth)
                break
            is_same = marks.iteration.is_same(iterations[known])
            known += 1
            if not is_same:
                marks.iteration = iterations[known - 1]
                self.begin_round(marks)
                break
        for now in iterations[known:]:
            marks = LoopMarks(now.line, is_marked=False, iteration=now, is_complete=True)
            self.begin(marks)
            self.begin_round(marks)
        self._seen = seen

    def finish(self) -> None:
        """Ends all loops, and forgets the kernel's frames."""
        self._end_above(0)
        self.python = None

    def _end_above(self, depth: int) -> None:
        while len(self.open) > depth:
            self._seen = None
            marks = self.open.pop()
            marks.end, marks.iteration, marks.site = self.mark(), None, None
