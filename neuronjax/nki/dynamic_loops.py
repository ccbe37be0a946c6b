"""Loops whose trips a register decides about, when the program runs.

Their body is traced once. A register of the loop's own has its trips; of a `while` it has so many
that they never end, or 0.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import linecache
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn, SupportsIndex

from neuronjax.errors import UnsupportedProgramError, quoted
from neuronjax.nki.loop_marks import LoopMarks
from neuronjax.nki.loops import loop_range
from neuronjax.nki.refusal import checked, misfit
from neuronjax.nki.tracing import Trace, current, is_tracing
from neuronjax.program.affine import Affine, affine
from neuronjax.program.control import RegisterArithmetic, RegisterMove, RegisterValue
from neuronjax.program.operand import Immediate, Register
from neuronjax.program.operators import AluOp

_ENDLESS = Immediate((1 << 31) - 1)

Position = tuple[int | None, int | None, int | None, int | None]
"""First and last line of an expression, and its columns in them."""


def _refused(operator: str) -> Callable[..., Any]:
    def refuse(self: VirtualRegister, *others: object) -> NoReturn:
        raise UnsupportedProgramError(
            f"{current().line()}: a register has no operator {operator}, as its value is known "
            "when the program runs only; compute in a tile and use nisa.register_load."
        )

    return refuse


@dataclass(frozen=True, eq=False)
class VirtualRegister:
    """A register of 32 bits, whose value is known when the program runs."""

    register: Register

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refused("of comparison")
    __add__ = __radd__ = __sub__ = __rsub__ = __neg__ = _refused("+ or -")
    __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refused("*, // or %")
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        """Within `while register:`, True once and False when the body has been traced.

        UnsupportedProgramError: it is asked for elsewhere.
        """
        if not is_tracing():
            return True
        trace = current()
        frame = trace.follow()
        position = _running(frame)
        is_open = trace.open_loops and trace.open_loops[-1].statement == (frame, position)
        if is_open:
            _end_while(trace, trace.open_loops[-1], self.register)
            return False
        if position not in _whiles("".join(linecache.getlines(frame.f_code.co_filename))):
            raise UnsupportedProgramError(
                f"{trace.line()}: whether a register is 0 is known when the program runs only; "
                "write `while register:`, nl.while_loop or nl.where."
            )
        _begin_while(trace, self.register).statement = (frame, position)
        return True

    def __index__(self) -> int:
        raise UnsupportedProgramError(
            f"{current().line()}: the value of a register is known when the program runs only; "
            "use nl.dynamic_range for a loop, nl.ds(register, size) for an index."
        )

    __int__ = __float__ = __index__


def _running(frame: FrameType) -> Position:
    """The expression or statement that a frame runs."""
    positions = frame.f_code.co_positions()
    return next(itertools.islice(positions, frame.f_lasti // 2, None))


@functools.lru_cache(maxsize=64)
def _whiles(source: str) -> frozenset[Position]:
    """The positions of each `while` of one value in a source, and of its condition: which of the
    two Python is at depends on its version."""
    whiles = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.While) and not isinstance(node.test, ast.BoolOp | ast.UnaryOp)
    ]
    return frozenset(
        (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)
        for about in whiles
        for node in (about, about.test)
    )


@checked("nki.language.dynamic_range")
def dynamic_range(
    start: int | VirtualRegister, stop: int | VirtualRegister | None = None, step: int = 1
) -> Iterable[Any]:
    """The numbers of `range`, of which a bound may be a register; then each is a register.

    UnsupportedProgramError: a bound is neither an integer nor a register, or the step is no
    positive integer.
    """
    if not any(isinstance(bound, VirtualRegister) for bound in (start, stop, step)):
        return loop_range(start, stop, step)  # type: ignore[arg-type]
    return _counted(0, start, step) if stop is None else _counted(start, stop, step)


def fori_loop(
    lower: int | VirtualRegister,
    upper: int | VirtualRegister,
    body_fun: Callable[[VirtualRegister], None],
    step: int = 1,
) -> None:
    """Runs `body_fun` with each number from `lower` to `upper`, which is a register.

    Raises as `dynamic_range` does.
    """
    _check_body(body_fun)
    for number in _counted(lower, upper, step):
        body_fun(number)


def while_loop(
    init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]
) -> None:
    """While the register is not 0, runs `body_fun` with it; what that returns is the next one.

    UnsupportedProgramError: `init` or what `body_fun` returns is no register, or never changes.
    """
    trace = current()
    _check_body(body_fun)
    state, shown = trace.register(), trace.register()
    _move(trace, state, _register(trace, init, "init"))
    marks = _begin_while(trace, state)
    _move(trace, shown, state)
    begun = len(trace.instructions)
    after = _register(trace, body_fun(VirtualRegister(shown)), "what body_fun returns")
    _check_written(trace, begun, after)
    _move(trace, state, after)
    _end_while(trace, marks, state)


def _check_body(body_fun: object) -> None:
    """UnsupportedProgramError: it is no function of one register."""
    wrong = f"{quoted(body_fun)} is no function."
    if callable(body_fun):
        wrong = misfit(inspect.signature(body_fun), (None,), {}) or ""
    if wrong:
        raise UnsupportedProgramError(f"{current().line()}: body_fun takes one register: {wrong}")


def _counted(
    start: int | VirtualRegister, stop: int | VirtualRegister, step: int
) -> Iterator[VirtualRegister]:
    """The numbers of a loop, once: what its body is traced with."""
    trace = current()
    if not isinstance(step, int) or step < 1:
        raise UnsupportedProgramError(
            f"{trace.line()}: the step of a loop over a register is {quoted(step)}; pass a "
            "positive integer."
        )
    first, last = _bound(trace, start), _bound(trace, stop)
    if isinstance(first, Immediate) and isinstance(last, Immediate):
        known = len(range(int(first.value), int(last.value), step))
        trips = trace.register("trips", known)
        _move(trace, trips, Immediate(known))
    else:
        trips = trace.register("trips")
        if step == 1:
            _compute(trace, trips, AluOp.SUBTRACT, last, first)
        else:
            _decide(trace, trips, AluOp.LESS, first, last)
    marks = trace.begin_register_loop(trips)
    number = trace.register()
    _set(trace, number, first, affine(0, **{marks.variable: step}))
    begun, line = len(trace.instructions), trace.line()
    yield VirtualRegister(number)
    if len(trace.instructions) == begun:
        trace.advice[line] = (
            "the loop over a register has no instructions; its body is traced once, within `for`, "
            "and no list has its numbers"
        )
    if step > 1 and trips.limit is None:
        _set(trace, number, first, affine(step, **{marks.variable: step}))
        _decide(trace, trips, AluOp.LESS, number, last)
    trace.end_register_loop(marks)


def _bound(trace: Trace, bound: object) -> Register | Immediate:
    """A loop's bound, in a register that nothing changes."""
    if isinstance(bound, SupportsIndex) and not isinstance(bound, VirtualRegister):
        return Immediate(bound.__index__())
    copied = trace.register()
    _move(trace, copied, _register(trace, bound, "a loop's bound"))
    return copied


def _set(trace: Trace, register: Register, first: Register | Immediate, further: Affine) -> None:
    """The register gets `first`, and what is further."""
    if isinstance(first, Register):
        _compute(trace, register, AluOp.ADD, first, further)
    else:
        _move(trace, register, further + affine(int(first.value)))


def _register(trace: Trace, value: object, what: str) -> Register:
    if not isinstance(value, VirtualRegister):
        raise UnsupportedProgramError(
            f"{trace.line()}: {what} is {quoted(value)}; pass a register, of nisa.register_alloc "
            "and nisa.register_load."
        )
    return value.register


def _begin_while(trace: Trace, register: Register) -> LoopMarks:
    trips = trace.register("trips")
    _decide(trace, trips, AluOp.NOT_EQUAL, register, Immediate(0))
    return trace.begin_register_loop(trips)


def _end_while(trace: Trace, marks: LoopMarks, register: Register) -> None:
    _check_written(trace, marks.rounds[0].instructions, register)
    assert marks.trips is not None
    _decide(trace, marks.trips, AluOp.NOT_EQUAL, register, Immediate(0))
    trace.end_register_loop(marks)


def _check_written(trace: Trace, begun: int, register: Register) -> None:
    """UnsupportedProgramError: no instruction of a body, which begins there, changes a register."""
    if not any(register in instruction.writes() for instruction in trace.instructions[begun:]):
        raise UnsupportedProgramError(
            f"{trace.line()}: the loop never ends: nothing in its body changes the register. Load "
            "the next value with nisa.register_load."
        )


def _decide(
    trace: Trace, trips: Register, op: AluOp, left: RegisterValue, right: RegisterValue
) -> None:
    """Trips without end if a comparison is true."""
    _compute(trace, trips, op, left, right)
    _compute(trace, trips, AluOp.MULTIPLY, trips, _ENDLESS)


def _move(trace: Trace, register: Register, value: RegisterValue) -> None:
    trace.add(RegisterMove(dst=register, src=value))


def _compute(
    trace: Trace, register: Register, op: AluOp, left: RegisterValue, right: RegisterValue
) -> None:
    trace.add(RegisterArithmetic(dst=register, op=op, left=left, right=right))
