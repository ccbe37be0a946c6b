"""From a call of a kernel to a finished program: its arguments, its body, its checks."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
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
from neuronjax.nki.calls import Call, is_array
from neuronjax.nki.loops import Rolling
from neuronjax.nki.tensor import Tensor, whole
from neuronjax.nki.trace import Trace, ended, tracing
from neuronjax.program import program
from neuronjax.program.element_types import element_type_named
from neuronjax.program.operand import Access, Buffer, Kind, Memory
from neuronjax.program.verify import verify
from neuronjax.program.walk import instructions

KERNEL_CHIPS = tuple(name for name, chip in CHIPS.items() if chip.core.is_published)
"""The chips that kernels are written for."""

_MOST_FINDINGS = 10


@dataclass(frozen=True)
class Compiled:
    """A kernel for arguments of certain shapes and dtypes."""

    program: program.Program
    #: What the kernel returned: a tensor, a tuple, list or dict of tensors, or None.
    returned: Any
    #: Tensor -> `file:line` that declared it.
    declared: Mapping[str, str]
    #: Position among the arrays -> the result that an array becomes which the kernel writes to.
    written: Mapping[int, str]
    #: What a user may want to know: loops that are written out, and why.
    notes: tuple[str, ...] = ()

    def unreturned(self) -> list[int]:
        """Positions of the arrays that it writes to and does not return."""
        tensors = {tensor.storage.name for tensor in jax.tree.leaves(self.returned)}
        inputs = [b.name for b in self.program.buffers if b.kind is Kind.ARGUMENT]
        return [position for position in self.written if inputs[position] not in tensors]

    def run(self, arrays: Sequence[np.ndarray], order: core.Order | None = None) -> Any:
        """Its results, as the kernel returned them, by the emulator.

        Raises ``ExecutionError`` with the kernel's lines.
        """
        return self.run_in_place(arrays, order)[0]

    def run_in_place(
        self, arrays: Sequence[np.ndarray], order: core.Order | None = None
    ) -> tuple[Any, Mapping[int, np.ndarray]]:
        """Its results, and by their positions the new values of arrays that it writes to.

        Raises as `run` does.
        """
        inputs = [b.name for b in self.program.buffers if b.kind is Kind.ARGUMENT]
        arguments = dict(zip(inputs, arrays, strict=True))
        try:
            results = core.run(self.program, [arguments], order=order)[0]
        except ExecutionError as error:
            text = _with_lines(str(error), {**_by_path(self.program), **self.declared})
            raise type(error)(text) from error
        names = {inputs[position]: name for position, name in self.written.items()}

        def value(tensor: Tensor) -> np.ndarray:
            name = tensor.storage.name
            return results[names.get(name, name)].reshape(tensor.shape)

        returned = jax.tree.map(value, self.returned)
        return returned, {place: results[name] for place, name in self.written.items()}


def compiled(function: Callable[..., Any], call: Call, chip: str) -> Compiled:
    """The kernel `function` for a call with arrays of those shapes and dtypes, whose values do not
    matter.

    Raises: those of `Kernel.trace`.
    """
    name = function.__name__
    if chip not in KERNEL_CHIPS:
        raise KernelError(
            f"{name}: no chip {chip!r} runs kernels; there are {', '.join(KERNEL_CHIPS)}."
        )
    trace = Trace(function.__code__.co_filename, chip)
    tensors = [
        _argument(trace, f"{name}({place})", leaf)
        for place, leaf in zip(call.places, call.leaves, strict=True)
        if is_array(leaf)
    ]
    positional, keywords = call.replaced(tensors)
    token = tracing(trace)
    try:
        returned = function(*positional, **keywords)
    finally:
        ended(token)
    written = _written(trace)
    _check_returned(name, returned, {*written.values(), *_results(trace)})
    aliases = tuple(
        program.Alias(_result_of(argument), argument.name) for argument in written.values()
    )
    trace.buffers.extend(
        dataclasses.replace(argument, name=_result_of(argument), kind=Kind.RESULT)
        for argument in written.values()
    )
    finished, notes = _finished(name, trace, aliases)
    results = {position: _result_of(argument) for position, argument in written.items()}
    return Compiled(finished, returned, trace.declared, results, notes)


def _result_of(argument: Buffer) -> str:
    """The name of the result that shares memory with an argument."""
    return f"{argument.name}_written"


def _results(trace: Trace) -> list[Buffer]:
    return [buffer for buffer in trace.buffers if buffer.kind is Kind.RESULT]


def _written(trace: Trace) -> dict[int, Buffer]:
    """Position -> argument, for those that an instruction writes to."""
    targets = {
        access.buffer
        for instruction in trace.instructions
        for access in instruction.writes()
        if isinstance(access, Access)
    }
    arguments = [buffer for buffer in trace.buffers if buffer.kind is Kind.ARGUMENT]
    return {place: buffer for place, buffer in enumerate(arguments) if buffer in targets}


_SLOTS = (4, 2, 1)
"""Places for a tile that a round of a loop makes: the most for which there is room."""


def _finished(
    name: str, trace: Trace, aliases: tuple[program.Alias, ...]
) -> tuple[program.Program, tuple[str, ...]]:
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
            finished = synchronise(
                allocate(_program(name, trace, body, rolling.buffers(body), aliases))
            )
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
        finished = synchronise(allocate(_program(name, trace, instructions, tiles, aliases)))
    _check(name, finished, trace.declared)
    return finished, notes


def _argument(trace: Trace, place: str, value: Any) -> Tensor:
    """The tensor of an array; `place` names kernel and parameter."""
    try:
        dtype = element_type_named(value.dtype.name)
    except UnknownFormatError as error:
        raise KernelError(f"{place}: {error} Convert the array with astype.") from None
    return whole(trace.buffer(Memory.HBM, dtype, tuple(value.shape), Kind.ARGUMENT))


def _check_returned(name: str, returned: Any, results: Set[Buffer]) -> None:
    """Raises ``UnsupportedProgramError`` unless these are whole tensors of `results`."""
    for value in jax.tree.leaves(returned):
        is_whole = isinstance(value, Tensor) and (
            value.is_contiguous() and value.size == math.prod(value.storage.shape)
        )
        if not is_whole or value.storage.on_chip:
            raise UnsupportedProgramError(
                f"{name} returns {quoted(value)}; return whole tensors of nl.shared_hbm."
            )
        if value.storage not in results:
            raise UnsupportedProgramError(
                f"{name} returns a tensor that it does not write; declare one in nl.shared_hbm, or "
                "return an argument that it writes to."
            )


def _program(
    name: str,
    trace: Trace,
    nodes: tuple[program.Node, ...],
    tiles: tuple[Buffer, ...],
    aliases: tuple[program.Alias, ...],
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
        aliases=aliases,
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
