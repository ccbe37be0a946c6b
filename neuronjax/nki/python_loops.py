"""The place of Python in the `for` statements and comprehensions of a kernel.

A kernel's loops over `range`, `enumerate` or lists tell nobody of their iterations. A frame does:
its position is within the loop's body, and the loop's variables have new values in every iteration.
"""

from __future__ import annotations

import dis
import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType


@dataclass(frozen=True, slots=True)
class ForLoop:
    """A loop of a code object: its body has the positions between `start` and `end`, and `names`
    are the variables that an iteration sets; `line` is that of the statement."""

    line: int
    start: int
    end: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Iteration:
    """A frame's iteration of one of its loops, which sets `values`."""

    frame: FrameType
    loop: ForLoop
    values: tuple[object, ...]

    @property
    def line(self) -> str:
        """``file:line`` of the loop."""
        return f"{self.frame.f_code.co_filename}:{self.loop.line}"

    def is_of(self, other: Iteration) -> bool:
        """Whether both are iterations of one loop, while it runs once."""
        return self.frame is other.frame and self.loop is other.loop

    def is_same(self, other: Iteration) -> bool:
        """Whether both are one iteration."""
        return self.is_of(other) and all(
            value is before for value, before in zip(self.values, other.values, strict=True)
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """A frame and the iterations about its position."""

    frame: FrameType
    iterations: tuple[Iteration, ...]

    def is_same(self, other: _Level) -> bool:
        """Whether a frame is in the same iterations."""
        return (
            self.frame is other.frame
            and len(self.iterations) == len(other.iterations)
            and all(map(Iteration.is_same, self.iterations, other.iterations))
        )


class PythonLoops:
    """Follows the frames from `root`, which calls the kernel, to the innermost one."""

    def __init__(self, root: FrameType, outside: Sequence[str]) -> None:
        """`outside` is what the file names of code begin with that is no kernel's."""
        self._root = root
        self._outside = tuple(outside)
        self._levels: list[_Level] = []
        self._iterations: list[Iteration] = []
        #: By number of a code object, that object and its loops.
        self._loops: dict[int, tuple[CodeType, tuple[ForLoop, ...]]] = {}

    def iterations(self, frame: FrameType) -> list[Iteration]:
        """The iterations that are open where an innermost frame is, outermost first: the same list
        while they are the same."""
        frames = self._frames(frame)
        levels = self._levels
        pairs = zip(frames, levels, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] is pair[1].frame, pairs))
        # A frame stands still while the one that it has called runs.
        kept = max(same - 1, 0)
        before = levels[kept:]
        after = [self._level(own) for own in frames[kept:]]
        if len(before) == len(after) and all(map(_Level.is_same, before, after)):
            return self._iterations
        levels[kept:] = after
        self._iterations = [iteration for level in levels for iteration in level.iterations]
        return self._iterations

    def _frames(self, frame: FrameType) -> list[FrameType]:
        frames: list[FrameType] = []
        caller: FrameType | None = frame
        while caller is not None and caller is not self._root:
            frames.append(caller)
            caller = caller.f_back
        return frames[::-1]

    def _level(self, frame: FrameType) -> _Level:
        position = frame.f_lasti
        about = [loop for loop in self._of(frame.f_code) if loop.start < position < loop.end]
        values = frame.f_locals if about else {}
        set_to = [tuple(values.get(name) for name in loop.names) for loop in about]
        return _Level(frame, tuple(map(Iteration, [frame] * len(about), about, set_to)))

    def _of(self, code: CodeType) -> tuple[ForLoop, ...]:
        known = self._loops.get(id(code))
        if known is None:
            is_outside = code.co_filename.startswith(self._outside)
            known = self._loops[id(code)] = (code, () if is_outside else for_loops(code))
        return known[1]


@functools.lru_cache(maxsize=1024)
def for_loops(code: CodeType) -> tuple[ForLoop, ...]:
    """The loops of a code object, outer ones before those within."""
    instructions = list(dis.get_instructions(code))
    return tuple(
        ForLoop(
            line=(instruction.positions and instruction.positions.lineno) or code.co_firstlineno,
            start=instruction.offset,
            end=instruction.argval,
            names=tuple(_names(instructions[number + 1 :])),
        )
        for number, instruction in enumerate(instructions)
        if instruction.opname == "FOR_ITER"
    )


def _names(instructions: Sequence[dis.Instruction]) -> Iterator[str]:
    """The variables that the first instructions of a loop's body set."""
    for instruction in instructions:
        name, value = instruction.opname, instruction.argval
        if name.startswith("STORE_") and isinstance(value, str):
            yield value
        elif name == "STORE_FAST_STORE_FAST":  # Python 3.13
            yield from value
        elif name == "STORE_FAST_LOAD_FAST":
            yield value[0]
            return
        elif not name.startswith(("UNPACK_", "NOT_TAKEN", "EXTENDED_ARG", "NOP", "CACHE")):
            return
