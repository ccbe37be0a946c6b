"""A kernel while it is traced: its buffers, instructions and the user's lines."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import jax
import numpy as np

from neuronjax.errors import UnsupportedProgramError
from neuronjax.nki.loop_marks import LoopMarks, Mark, Nest
from neuronjax.nki.python_loops import PythonLoops
from neuronjax.options import Version
from neuronjax.program.element_types import ElementType, bytes_of
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Kind, Memory, Register

SHARED = (Kind.ARGUMENT, Kind.RESULT)
"""The kinds of buffers that all programs of a grid share."""


_OWN = (*(os.path.dirname(file) + os.sep for file in (__file__, jax.__file__, np.__file__)), "<")
"""What the file names of frames begin with that are no kernel's: those of this package, of JAX and
numpy, and of code that Python has generated."""
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


_MOST_INSTRUCTIONS = 1_000_000
"""Instructions that a kernel may have; tracing them takes half a minute, and tens of thousands are
the most in kernels that people write."""


@dataclass
class Trace:
    """What a kernel has written so far; `accumulated` are the tiles of PSUM that a product was
    written to, `declared` has the line of every tensor."""

    chip: str
    #: The release of the Neuron SDK whose failures are noted.
    sdk: Version
    #: The programs of the grid; none: the kernel is called without a grid.
    grid: tuple[int, ...] = ()
    #: The number of the program that is traced.
    program: int = 0
    buffers: list[Buffer] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    accumulated: set[Access] = field(default_factory=set)
    declared: dict[str, str] = field(default_factory=dict)
    #: Lines of the kernel, with what to mind there.
    advice: dict[str, str] = field(default_factory=dict)
    #: What to note about the kernel, in order.
    remarks: dict[str, None] = field(default_factory=dict)
    #: What the kernel calls instructions, and their lines.
    names: dict[str, str] = field(default_factory=dict)
    #: Name -> a tile that is another one read as another width, and the other one's name.
    aliases: dict[str, tuple[Buffer, str]] = field(default_factory=dict)
    registers: list[Register] = field(default_factory=list)
    register_loops: list[LoopMarks] = field(default_factory=list)
    #: Logical cores that run the kernel and exchange data; the line that asks which of them one is;
    #: how many the caller says there are.
    ranks: int = 1
    rank_line: str = ""
    ranks_of_call: int | None = None
    #: Whether the compiler may choose another order of instructions.
    may_reorder: bool = False
    #: What copies the one partition of a tile to so many; None: Vector.
    spread: Callable[[Any, int], Any] | None = None

    def __post_init__(self) -> None:
        self.nest = Nest(self.mark)

    def exchanges_between(self, ranks: int) -> None:
        """Notes that so many ranks exchange data.

        UnsupportedProgramError: the kernel exchanges data between another number of ranks, too.
        """
        if self.ranks not in (1, ranks):
            raise UnsupportedProgramError(
                f"{self.line()}: {ranks} ranks exchange data here, and {self.ranks} before; name "
                "every rank in every collective."
            )
        self.ranks = ranks

    def check_ranks(self) -> None:
        """Takes the number of ranks from the call, if the kernel asks for its own and has no
        collective that says how many there are.

        UnsupportedProgramError: nobody says it.
        """
        if not self.rank_line or self.ranks > 1:
            return
        if self.ranks_of_call is None:
            raise UnsupportedProgramError(
                f"{self.rank_line}: nobody says how many ranks there are, which a kernel that asks "
                "for its own must know: it has no collective, and is called neither within "
                "jax.shard_map nor by nki.simulate with ranks."
            )
        self.ranks = self.ranks_of_call

    def buffer(
        self,
        memory: Memory,
        dtype: ElementType,
        shape: tuple[int, ...],
        kind: Kind,
        data: bytes | None = None,
        address: tuple[int, int] | None = None,
        label: str = "",
    ) -> Buffer:
        """A new buffer; `data` are the bytes of a constant, `address` is the partition and the byte
        in it where a tile lies, `label` is what the kernel calls it.

        Programs of a grid share arguments and results: the same name means the same tensor.
        """
        self.follow()
        stem = re.sub(r"\W|^(?=\d)", "_", label) + "_" if label else kind.value
        name = f"{stem}{len(self.buffers)}"
        if kind in SHARED:
            name = f"{kind.value}{sum(buffer.kind is kind for buffer in self.buffers)}"
        elif self.program:
            name = f"{name}_{self.program}"
        partition, byte = address or (0, None)
        buffer = Buffer(
            name=name,
            memory=memory,
            dtype=dtype,
            shape=shape,
            kind=kind,
            data=data,
            partition=partition,
            address=byte,
        )
        self.buffers.append(buffer)
        if kind is not Kind.ARGUMENT:
            self.declared[name] = self.lines_through()
        return buffer

    def alias(self, tensor: Buffer, dtype: ElementType) -> Buffer:
        """The bytes of a tensor as elements of another type, which has another width."""
        name = f"{tensor.name}_as_{dtype.name}"
        if name not in self.aliases:
            elements = tensor.slot_bytes // bytes_of(dtype)
            shape = (tensor.partitions, elements) if tensor.on_chip else (elements,)
            other = dataclasses.replace(tensor, name=name, dtype=dtype, shape=shape)
            if not tensor.on_chip:
                other = dataclasses.replace(other, kind=Kind.SCRATCH, data=None)
            self.aliases[name] = (other, tensor.name)
            self.buffers.append(other)
            self.declared[name] = self.lines_through()
        return self.aliases[name][0]

    def mark(self) -> Mark:
        """The point that the trace has reached."""
        return Mark(len(self.instructions), len(self.buffers), len(self.registers))

    @property
    def loops(self) -> Sequence[LoopMarks]:
        """The outermost loops."""
        return self.nest.loops

    @property
    def open_loops(self) -> Sequence[LoopMarks]:
        """The loops that are running, outermost first."""
        return self.nest.open

    def follow(self) -> FrameType:
        """Begins and ends loops of Python as far as the kernel has come; its innermost frame."""
        frame = kernel_frame()
        self.nest.follow(frame)
        return frame

    def begin_loop(self, is_affine: bool = False, is_static: bool = False) -> LoopMarks:
        """Marks of a loop that begins, within those that have begun."""
        frame = self.follow()
        marks = LoopMarks(_line(frame), is_affine=is_affine, is_static=is_static)
        marks.site = (frame, frame.f_lasti)
        self.nest.begin(marks)
        return marks

    def begin_register_loop(self, trips: Register) -> LoopMarks:
        """Marks of a loop that runs as often as a register says when the program runs.

        UnsupportedProgramError: it is within another one, in one of several programs.
        """
        around = next((loop for loop in self.open_loops if loop.trips is not None), None)
        if around is not None and math.prod(self.grid) > 1:
            raise UnsupportedProgramError(
                f"{self.line()}: a loop over a register within another one, of {around.line}, is "
                "not built for kernels of several programs; give one of them bounds that are known "
                "when the kernel is traced, or call the kernel without a grid."
            )
        marks = self.begin_loop()
        number, line = len(self.register_loops), marks.line.rpartition(":")[2]
        marks.trips, marks.variable = trips, f"loop{number}_line{line}"
        self.nest.begin_round(marks)
        self.register_loops.append(marks)
        self.declared[marks.variable] = marks.line
        return marks

    def is_older_than_loop(self, buffer: Buffer) -> bool:
        """Whether a buffer was there before the innermost loop over a register that is open."""
        begun = [loop.rounds[0].buffers for loop in self.open_loops if loop.trips is not None]
        return bool(begun) and buffer in self.buffers[: begun[-1]]

    def end_register_loop(self, marks: LoopMarks) -> None:
        """Ends a loop whose body has been traced."""
        marks.is_complete, marks.statement = True, None
        self.nest.end(marks)

    def check_loops(self) -> None:
        """UnsupportedProgramError: the body of a loop over a register was left halfway."""
        for loop in self.register_loops:
            if not loop.is_complete:
                raise UnsupportedProgramError(
                    f"{loop.line}: break or return leaves a loop over a register, whose body is "
                    "traced once; make the loop's register 0 instead."
                )

    def register(self, name: str = "register", limit: int | None = None) -> Register:
        """A new register, without a value; `limit` is the greatest it may get."""
        self.follow()
        register = Register(f"{name}{len(self.registers)}", limit)
        self.registers.append(register)
        return register

    def add(self, instruction: Instruction) -> str:
        """Appends an instruction, at the kernel's line that is running, which it returns."""
        line = _line(self.follow())
        try:
            part = self.lines.index(line)
        except ValueError:
            part = len(self.lines)
            self.lines.append(line)
        if len(self.instructions) == _MOST_INSTRUCTIONS:
            raise UnsupportedProgramError(
                f"{line}: the kernel has {_MOST_INSTRUCTIONS:,} instructions here and goes on, as "
                "every iteration of its loops is traced. End the loop, or give each instruction "
                "more to do."
            )
        self.instructions.append(instruction.with_part(part))
        return line

    def line(self) -> str:
        """``file:line`` of the innermost frame of the kernel's own code, or of what it calls."""
        return _line(kernel_frame())

    def lines_through(self) -> str:
        """The line of `line` behind that of the other file which called it, as an allocator's line
        alone says little."""
        innermost = kernel_frame()
        caller: FrameType | None = innermost
        while caller is not None and caller.f_code.co_filename == innermost.f_code.co_filename:
            caller = caller.f_back
        if caller is None or caller.f_code.co_filename.startswith(_OWN):
            return _line(innermost)
        return f"{_line(caller)}, through {_line(innermost)}"


def kernel_frame() -> FrameType:
    """The innermost frame of the kernel's own code, or of what it calls."""
    return _outside(sys._getframe(1))


def line_in_kernel(frame: FrameType) -> str:
    """``file:line`` where a frame, or what called it, is in the kernel's own code."""
    return _line(_outside(frame))


def callers_of(error: Exception) -> list[str]:
    """``file:line`` of the calls in the kernel's own code that lead to the frame where an error was
    raised, the innermost first; without that frame, which the error names itself."""
    lines = [
        f"{frame.f_code.co_filename}:{number}"
        for frame, number in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith((_PACKAGE, *_OWN))
    ]
    return lines[-2::-1]


def _outside(frame: FrameType) -> FrameType:
    """The innermost frame that is not of this package."""
    while frame.f_code.co_filename.startswith(_OWN) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


_CURRENT: ContextVar[Trace] = ContextVar("trace")


def tracing(trace: Trace) -> object:
    """Makes `trace` the current one, for kernels that the caller calls; returns the token for
    `ended`."""
    trace.nest.python = PythonLoops(sys._getframe(1), _OWN)
    return _CURRENT.set(trace)


def ended(token: object) -> None:
    """Restores what was current before `tracing`."""
    _CURRENT.reset(token)  # type: ignore[arg-type]


def is_tracing() -> bool:
    """Whether a kernel is being traced."""
    return _CURRENT.get(None) is not None


def current() -> Trace:
    """UnsupportedProgramError: no kernel is being traced."""
    try:
        return _CURRENT.get()
    except LookupError:
        raise UnsupportedProgramError(
            "nki.language and nki.isa work inside a kernel: call nki.simulate(kernel)(*arrays)."
        ) from None
