"""From a call of a kernel to a finished program: its arguments, its body, its checks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronjax.emulate import core
from neuronjax.errors import (
    ExecutionError,
    KernelError,
    OnChipMemoryError,
    UnknownFormatError,
    UnsupportedProgramError,
    quoted,
)
from neuronjax.lower.memory.allocate import allocate
from neuronjax.lower.sync.synchronise import synchronise
from neuronjax.machine.chips import CHIPS
from neuronjax.nki.building import closed_groups
from neuronjax.nki.loops import Rolling
from neuronjax.nki.tensor import Tensor, whole
from neuronjax.nki.trace import Trace, ended, tracing
from neuronjax.program import program
from neuronjax.program.element_types import element_type_named
from neuronjax.program.operand import Buffer, Kind, Memory
from neuronjax.program.verify import verify
from neuronjax.program.walk import instructions

KERNEL_CHIPS = tuple(name for name, chip in CHIPS.items() if chip.core.is_published)
"""The chips that kernels are written for."""

_MOST_FINDINGS = 10


@dataclass(frozen=True)
class Compiled:
    """A kernel for arguments of certain shapes and dtypes."""

    program: program.Program
    #: The tensor that the kernel returned, or a tuple of them.
    returned: Tensor | tuple[Tensor, ...]
    #: Tensor -> `file:line` that declared it.
    declared: Mapping[str, str]
    #: What a user may want to know: loops that are written out, and why.
    notes: tuple[str, ...] = ()

    def run(self, arrays: Sequence[np.ndarray], order: core.Order | None = None) -> Any:
        """Its results, as the kernel returned them, by the emulator.

        Raises ``ExecutionError`` with the kernel's lines.
        """
        inputs = [b.name for b in self.program.buffers if b.kind is Kind.ARGUMENT]
        arguments = dict(zip(inputs, arrays, strict=True))
        try:
            results = core.run(self.program, [arguments], order=order)[0]
        except ExecutionError as error:
            text = _with_lines(str(error), {**_by_path(self.program), **self.declared})
            raise type(error)(text) from error
        if isinstance(self.returned, tuple):
            return tuple(results[tensor.storage.name] for tensor in self.returned)
        return results[self.returned.storage.name]


def compiled(function: Callable[..., Any], arrays: Sequence[Any], chip: str) -> Compiled:
    """The kernel `function` for arrays of those shapes and dtypes; values do not matter.

    Raises: those of `Kernel.trace`.
    """
    name = function.__name__
    if chip not in KERNEL_CHIPS:
        raise KernelError(
            f"{name}: no chip {chip!r} runs kernels; there are {', '.join(KERNEL_CHIPS)}."
        )
    trace = Trace(function.__code__.co_filename, chip)
    tensors = [
        _argument(trace, f"{name}({parameter})", value)
        for parameter, value in _named(function, arrays)
    ]
    token = tracing(trace)
    try:
        returned = function(*tensors)
    finally:
        ended(token)
    _check_returned(name, returned, trace)
    finished, notes = _finished(name, trace)
    return Compiled(finished, returned, trace.declared, notes)


_SLOTS = (4, 2, 1)
"""Places for a tile that a round of a loop makes: the most for which there is room."""


def _finished(name: str, trace: Trace) -> tuple[program.Program, tuple[str, ...]]:
    """The program with loops if the chip takes it, else without, and notes why."""
    instructions = closed_groups(trace.instructions)
    notes: tuple[str, ...] = ()
    for slots in _SLOTS if trace.loops else ():
        rolling = Rolling(trace, instructions, slots)
        body = rolling.body()
        notes = tuple(dict.fromkeys(rolling.notes))
        if not any(isinstance(node, program.Loop) for node in body):
            break
        try:
            finished = synchronise(allocate(_program(name, trace, body, rolling.buffers(body))))
        except OnChipMemoryError as error:
            notes = (f"{name}: loops are written out: {error}",)
            continue
        findings = verify(finished)
        if not findings:
            return finished, notes
        notes = (f"{name}: loops are written out: {findings[0]}",)
        break
    tiles = tuple(buffer for buffer in trace.buffers if buffer.on_chip)
    with _lines_in_errors(trace.declared):
        finished = synchronise(allocate(_program(name, trace, instructions, tiles)))
    _check(name, finished, trace.declared)
    return finished, notes


def _named(function: Callable[..., Any], arrays: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Every argument with the name of its parameter; ``KernelError`` if they do not fit."""
    try:
        bound = inspect.signature(function).bind(*arrays)
    except TypeError as error:
        raise KernelError(
            f"{function.__name__} is called with {len(arrays)} arrays: {error}."
        ) from None
    for parameter, value in bound.arguments.items():
        if isinstance(value, tuple):
            yield from ((f"*{parameter}", entry) for entry in value)
        else:
            yield parameter, value


def _argument(trace: Trace, place: str, value: Any) -> Tensor:
    """The tensor of an array; `place` names kernel and parameter."""
    if not (hasattr(value, "dtype") and hasattr(value, "shape")):
        raise KernelError(
            f"{place} is called with {quoted(value)}; kernels take arrays. Pass jnp.asarray of it, "
            "or let the function that makes the kernel take it."
        )
    try:
        dtype = element_type_named(value.dtype.name)
    except UnknownFormatError as error:
        raise KernelError(f"{place}: {error} Convert the array with astype.") from None
    return whole(trace.buffer(Memory.HBM, dtype, tuple(value.shape), Kind.ARGUMENT))


def _check_returned(name: str, returned: Any, trace: Trace) -> None:
    """Raises ``UnsupportedProgramError`` unless these are HBM tensors of the kernel's own."""
    results = {b.name for b in trace.buffers if b.kind is Kind.RESULT}
    for value in returned if isinstance(returned, tuple) else (returned,):
        if not isinstance(value, Tensor) or value != whole(value.storage):
            raise UnsupportedProgramError(
                f"{name} returns {quoted(value)}; return whole tensors of nl.shared_hbm."
            )
        if value.storage.name not in results:
            raise UnsupportedProgramError(
                f"{name} returns a tensor that is not its own; declare one in nl.shared_hbm."
            )


def _program(
    name: str, trace: Trace, nodes: tuple[program.Node, ...], tiles: tuple[Buffer, ...]
) -> program.Program:
    """What was traced, without addresses and semaphores."""
    body = program.Kernel(
        name=name,
        body=nodes,
        buffers=tiles,
        parts=tuple(program.Part(name, sources=(line,)) for line in trace.lines),
    )
    return program.Program(
        name=name,
        target=program.Target(trace.chip),
        body=(body,),
        buffers=tuple(b for b in trace.buffers if not b.on_chip),
        registers=tuple(trace.registers),
    )


def _check(name: str, written: program.Program, declared: Mapping[str, str]) -> None:
    """Raises ``KernelError`` with what the chip would refuse, by the kernel's lines."""
    findings = verify(written)
    if findings:
        lines = {**_by_path(written), **declared}
        shown = [f"  {_with_lines(str(finding), lines)}" for finding in findings[:_MOST_FINDINGS]]
        raise KernelError(f"{name} is no program for {written.target.chip}:\n" + "\n".join(shown))


@contextmanager
def _lines_in_errors(declared: Mapping[str, str]) -> Iterator[None]:
    try:
        yield
    except OnChipMemoryError as error:
        raise type(error)(_with_lines(str(error), declared)) from None


def _by_path(written: program.Program) -> dict[str, str]:
    """Path of an instruction -> `file:line`."""
    return {
        place.path: place.kernel.parts[instruction.part].sources[0]
        for place, instruction in instructions(written)
        if place.kernel is not None and instruction.part is not None and place.kernel.parts
    }


def _with_lines(text: str, lines: Mapping[str, str]) -> str:
    """The text, with the line before every path and tensor that it names."""
    return re.sub(
        r"[^\s(]*\w",
        lambda match: f"{lines[match[0]]}: {match[0]}" if match[0] in lines else match[0],
        text,
    )
