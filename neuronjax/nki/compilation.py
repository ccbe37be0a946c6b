"""From a call of a kernel to a finished program: its arguments, its body, its checks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from neuronjax.emulate import core
from neuronjax.errors import (
    KernelError,
    KernelWarning,
    OnChipMemoryError,
    PsumOverflowError,
    SbufOverflowError,
    UnknownFormatError,
    UnsupportedProgramError,
    quoted,
)
from neuronjax.lower.memory.allocate import allocate
from neuronjax.lower.sync.synchronise import synchronise
from neuronjax.lower.write.rebuild import on_buffers
from neuronjax.machine.chips import CHIPS
from neuronjax.native_kernels import NativeKernel, lines_by_path, with_lines
from neuronjax.nki.beside import beside
from neuronjax.nki.building import closed_groups
from neuronjax.nki.calls import Call, is_array
from neuronjax.nki.carried import carried
from neuronjax.nki.early_reads import with_early_reads
from neuronjax.nki.endless import Watch
from neuronjax.nki.late_loads import LOADS, PREPARATIONS, with_late
from neuronjax.nki.loops import Rolling
from neuronjax.nki.precision import widened
from neuronjax.nki.queues import in_turn
from neuronjax.nki.tensor import Tensor, whole
from neuronjax.nki.trace import Trace, ended, tracing
from neuronjax.notices import warned
from neuronjax.program import program
from neuronjax.program.element_types import element_type_named
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Kind, Memory
from neuronjax.program.verify import verify

_MOST_FINDINGS = 10


@dataclass(frozen=True, repr=False)
class Compiled:
    """A kernel for arguments of certain shapes and dtypes."""

    program: program.Program
    #: What the kernel returned: a tensor, a tuple, list or dict of tensors, or None.
    returned: Any
    #: Tensor -> `file:line` that declared it.
    declared: Mapping[str, str]
    #: Position among the arrays -> the result that an array becomes which the kernel writes to or
    #: returns.
    written: Mapping[int, str]
    #: Positions of those that it writes to.
    changed: frozenset[int] = frozenset()
    #: What a user may want to know: loops that are written out, and why.
    notes: tuple[str, ...] = ()
    #: The programs that run beside each other, as in `Kernel.grid`.
    grid: tuple[int, ...] = ()

    def __repr__(self) -> str:
        """What it is for and what it returns; `program` has the instructions."""
        return f"{self.program.name} for {self.program.target.chip}, returns {self.returned!r}"

    def unreturned(self) -> list[int]:
        """Positions of the arrays that it writes to and does not return."""
        tensors = {tensor.storage.name for tensor in jax.tree.leaves(self.returned)}
        inputs = [b.name for b in self.program.buffers if b.kind is Kind.ARGUMENT]
        return [position for position in self.changed if inputs[position] not in tensors]

    @cached_property
    def native(self) -> NativeKernel:
        """The kernel as a function of its arrays and nothing else."""
        inputs = [b.name for b in self.program.buffers if b.kind is Kind.ARGUMENT]
        written = {inputs[position]: name for position, name in self.written.items()}
        names = [tensor.storage.name for tensor in jax.tree.leaves(self.returned)]
        return NativeKernel(
            program=self.program,
            results=tuple(written.get(name, name) for name in names),
            grid=self.grid,
            declared=self.declared,
        )

    def widened(self) -> Compiled:
        """The kernel with FP32 numbers in the place of BF16 and FP8, also among its arrays.

        KernelError: bits of such a number are read as another type.
        """
        return dataclasses.replace(self, program=widened(self.program))

    def run(self, arrays: Sequence[np.ndarray], order: core.Order | None = None) -> Any:
        """The results of a kernel of one rank, as it returned them, by the emulator.

        Raises ``ExecutionError`` with the kernel's lines.
        """
        return self.run_in_place([arrays], order)[0][0]

    def run_in_place(
        self,
        arrays: Sequence[Sequence[np.ndarray]],
        order: core.Order | None = None,
        record_to: str | Path | None = None,
    ) -> list[tuple[Any, Mapping[int, np.ndarray]]]:
        """Of each rank its results, and by their positions the new values of arrays that it writes
        to. ``neuronjax replay`` reads the file `record_to`.

        Raises as `run` does.
        """
        native = self.native
        by_rank = native.run(arrays, order, record_to)
        return [self._returned(native, results) for results in by_rank]

    def _returned(
        self, native: NativeKernel, results: Mapping[str, np.ndarray]
    ) -> tuple[Any, Mapping[int, np.ndarray]]:
        names = iter(native.results)

        def value(tensor: Tensor) -> np.ndarray:
            return results[next(names)].reshape(tensor.shape)

        returned = jax.tree.map(value, self.returned)
        return returned, {place: results[self.written[place]] for place in self.changed}


def compiled(
    function: Callable[..., Any],
    call: Call,
    chip: str,
    grid: tuple[int, ...] = (),
    ranks: int | None = None,
) -> Compiled:
    """The kernel `function` for a call with arrays of those shapes and dtypes, whose values do not
    matter; `grid` are its programs, which run on physical cores beside each other, and `ranks` how
    many logical cores run it, if the caller knows.

    Raises: those of `Kernel.trace`.
    """
    name = function.__name__
    programs, allowed = math.prod(grid), CHIPS[chip].allowed_lncs
    if programs not in allowed:
        raise KernelError(
            f"{name}{list(grid)} asks for {programs} programs, but a logical core of {chip} has "
            f"{' or '.join(map(str, allowed))} physical cores. Use a loop, nl.affine_range."
        )
    traces: list[Trace] = []
    lines: list[str] = []  # programs that take different ways have the same parts
    returned = None
    for number in reversed(range(programs)):
        trace = Trace(chip, grid, number, lines=lines, ranks_of_call=ranks)
        traces.insert(0, trace)
        returned = _traced(function, call, trace)
    buffers = _shared_buffers(name, traces)
    written = _written(traces, returned)
    results = {buffer for buffer in buffers if buffer.kind is Kind.RESULT}
    private = _private(returned) if programs == 1 else []
    _check_returned(name, returned, {*written.values(), *results, *private})
    promoted = {b.name: dataclasses.replace(b, kind=Kind.RESULT) for b in private}
    buffers = [promoted.get(buffer.name, buffer) for buffer in buffers]
    if not written and not any(isinstance(v, Tensor) for v in jax.tree.leaves(returned)):
        raise KernelError(
            f"{_place(function)}: {name} returns no tensor and writes to none of its arguments, so "
            "it has no results; return a tensor of nl.shared_hbm."
        )
    aliases = tuple(
        program.Alias(_result_of(argument), argument.name) for argument in written.values()
    )
    aliases += tuple(
        program.Alias(name, of) for trace in traces for name, (_, of) in trace.aliases.items()
    )
    buffers += [
        dataclasses.replace(argument, name=_result_of(argument), kind=Kind.RESULT)
        for argument in written.values()
    ]
    declared = {tensor: line for trace in traces for tensor, line in trace.declared.items()}
    advice = list(dict.fromkeys(part for trace in traces for part in _advice(trace)))
    finished, notes = _finished(_Grid(name, traces, tuple(buffers), aliases, declared, promoted))
    names = {position: _result_of(argument) for position, argument in written.items()}
    changed = frozenset(_written(traces, None))
    notes += tuple(f"{text}." for _, text in advice)
    _warn(advice)
    return Compiled(finished, returned, declared, names, changed, notes, grid)


def _advice(trace: Trace) -> Iterator[tuple[str, str]]:
    """Lines of the kernel, and what to mind there."""
    yield from ((place.reads, str(place)) for place in carried(trace))
    yield from ((line, f"{line}: {text}") for line, text in trace.advice.items())


def _warn(advice: Sequence[tuple[str, str]]) -> None:
    """Gives what to mind at lines of the kernel as warnings there."""
    for place, text in advice:
        file, _, line = place.rpartition(":")
        warned(f"{text}.", KernelWarning, file, int(line))


def _place(function: Callable[..., Any]) -> str:
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def _traced(function: Callable[..., Any], call: Call, trace: Trace) -> Any:
    """What the kernel returns; `trace` has what it does."""
    tensors = [
        _argument(trace, f"{function.__name__}({place})", leaf)
        for place, leaf in zip(call.places, call.leaves, strict=True)
        if is_array(leaf)
    ]
    positional, keywords = call.replaced(tensors)
    token = tracing(trace)
    try:
        with Watch(function.__name__, trace):
            returned = function(*positional, **keywords)
    finally:
        ended(token)
    trace.check_loops()
    trace.check_ranks()
    return returned


def _shared_buffers(name: str, traces: Sequence[Trace]) -> list[Buffer]:
    """The buffers in HBM of all programs; ``KernelError`` if shared ones differ."""
    known: dict[str, Buffer] = {}
    for trace in traces:
        for buffer in trace.buffers:
            if not buffer.on_chip and known.setdefault(buffer.name, buffer) != buffer:
                raise KernelError(
                    f"{trace.declared[buffer.name]}: program {trace.program} of {name} declares "
                    f"{buffer.dtype.name}{list(buffer.shape)} in nl.shared_hbm where program 0 "
                    f"declares {known[buffer.name].dtype.name}{list(known[buffer.name].shape)}; "
                    "all programs must declare the same tensors in the same order."
                )
    return list(known.values())


def _private(returned: Any) -> list[Buffer]:
    """The tensors of private memory among those that are returned."""
    tensors = [value for value in jax.tree.leaves(returned) if isinstance(value, Tensor)]
    buffers = dict.fromkeys(tensor.storage for tensor in tensors)
    return [b for b in buffers if b.kind is Kind.SCRATCH and not b.on_chip]


def _result_of(argument: Buffer) -> str:
    """The name of the result that shares memory with an argument."""
    return f"{argument.name}_written"


def _written(traces: Sequence[Trace], returned: Any) -> dict[int, Buffer]:
    """Position -> argument, for those that an instruction writes to, or that are returned."""
    targets = {
        tensor.storage for tensor in jax.tree.leaves(returned) if isinstance(tensor, Tensor)
    } | {
        access.buffer
        for trace in traces
        for instruction in trace.instructions
        for access in instruction.writes()
        if isinstance(access, Access)
    }
    viewed = {name: of for trace in traces for name, (_, of) in trace.aliases.items()}
    names = {viewed.get(buffer.name, buffer.name) for buffer in targets}
    arguments = [buffer for buffer in traces[0].buffers if buffer.kind is Kind.ARGUMENT]
    return {place: buffer for place, buffer in enumerate(arguments) if buffer.name in names}


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
class _Grid:
    """All programs of a kernel; `buffers` lie in HBM."""

    name: str
    traces: Sequence[Trace]
    buffers: tuple[Buffer, ...]
    aliases: tuple[program.Alias, ...]
    declared: Mapping[str, str]
    #: Tensors of private memory that are returned, as results.
    promoted: Mapping[str, Buffer]

    def written_out(self, measures: _Measures) -> program.Program:
        """The program without addresses, semaphores, and loops but those over registers."""
        kernels = []
        for trace in self.traces:
            order = with_early_reads(trace) if measures.is_early else trace.instructions
            if measures.late:
                order = with_late(measures.late, order, trace, self.traces)
            body = Rolling(trace, closed_groups(order), slots=0).body()
            tiles = tuple(buffer for buffer in trace.buffers if buffer.on_chip)
            kernel = self._kernel(trace, body, tiles)
            kernels.append(beside(kernel, trace) if measures.is_beside else kernel)
        return self._program(kernels)

    def rolled(self, slots: int) -> tuple[program.Program | None, tuple[str, ...]]:
        """The same with loops, and what to note; None: no loop is one."""
        kernels, notes, has_loops = [], {}, False
        for trace in self.traces:
            rolling = Rolling(trace, closed_groups(trace.instructions), slots)
            body = rolling.body()
            notes.update(dict.fromkeys(rolling.notes))
            has_loops |= any(isinstance(node, program.Loop) for node in body)
            kernels.append(self._kernel(trace, body, rolling.buffers(body)))
        return self._program(kernels) if has_loops else None, tuple(notes)

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
        return program.Program(
            name=self.name,
            target=program.Target(self.traces[0].chip, len(self.traces)),
            body=(split,) if len(kernels) > 1 else tuple(kernels),
            buffers=self.buffers,
            registers=tuple(sorted(registers, key=lambda register: register.name)),
            aliases=self.aliases,
            ranks=max(trace.ranks for trace in self.traces),
        )


_PAUSES = (128, 32, 8)
"""How many instructions a tile's memory best rests before another tile lies there: engines and
queues run so far ahead of each other."""

_SLOTS = (4, 2, 1)
"""Places for a tile that a round of a loop makes: the most for which there is room."""


def _finished(grid: _Grid) -> tuple[program.Program, tuple[str, ...]]:
    """The program with loops if the chip takes it, else without, and notes why."""
    notes: tuple[str, ...] = ()
    has_loops = any(trace.loops for trace in grid.traces)
    if has_loops and any(trace.aliases for trace in grid.traces):
        notes = (f"{grid.name}: loops are written out: a tile is viewed as another width",)
        has_loops = False
    for slots in _SLOTS if has_loops else ():
        rolled, notes = grid.rolled(slots)
        if rolled is None:
            break
        try:
            finished = synchronise(allocate(rolled, pauses=_PAUSES))
        except OnChipMemoryError as error:
            notes = (f"{grid.name}: loops are written out: {error}",)
            continue
        findings, advice = _refused(grid, finished)
        if not findings:
            return finished, (*notes, *advice)
        notes = (f"{grid.name}: loops are written out: {findings[0]}",)
        break
    with _lines_in_errors(grid.declared):
        allocated, measures = _allocated(grid)
        finished = synchronise(allocated)
    notes += tuple(f"{grid.name}: {note}" for note in measures.notes)
    findings, advice = _refused(grid, finished)
    if findings:
        shown = "\n".join(f"  {finding}" for finding in findings[:_MOST_FINDINGS])
        raise KernelError(
            f"{grid.name} is not a valid program for {finished.target.chip}:\n{shown}"
        )
    return finished, (*notes, *advice)


def _allocated(grid: _Grid) -> tuple[program.Program, _Measures]:
    """The program that is written out, with addresses, and what was done for that. Raises
    ``OnChipMemoryError``: what was short in the kernel's own order."""
    measures, others = _Measures(), list(_FOR_SBUF)
    first: OnChipMemoryError | None = None
    while True:
        try:
            return allocate(grid.written_out(measures), pauses=_PAUSES), measures
        except OnChipMemoryError as error:
            first = first or error
            if isinstance(error, SbufOverflowError) and others:
                measures = dataclasses.replace(others.pop(0), is_early=measures.is_early)
            elif isinstance(error, PsumOverflowError) and not measures.is_early:
                measures = dataclasses.replace(measures, is_early=True)
            else:
                raise first from None


_ADVICE: Mapping[str, str] = {
    "written once": "results depend on their order unless values agree",
    "uninitialised": "such values are arbitrary, and results must not depend on them",
}
"""Rule that no compiler checks, and that right programs may break -> what to mind."""


def _refused(grid: _Grid, finished: program.Program) -> tuple[list[str], list[str]]:
    """What the chip would refuse, and what to note, by the kernel's lines."""
    lines = {**lines_by_path(finished), **grid.declared}
    refused, advice = [], []
    for finding in verify(finished):
        if finding.rule in _ADVICE:
            what = f"{finding.path}: {finding.actual}; {_ADVICE[finding.rule]}."
            advice.append(with_lines(f"{grid.name}: {what}", lines))
        else:
            refused.append(with_lines(str(finding), lines))
    return refused, advice[:_MOST_FINDINGS]


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
                f"{name} returns a tensor of private memory, of which each program has its own; "
                "declare one in nl.shared_hbm, or return an argument."
            )


@contextmanager
def _lines_in_errors(declared: Mapping[str, str]) -> Iterator[None]:
    try:
        yield
    except OnChipMemoryError as error:
        raise type(error)(with_lines(str(error), declared)) from None
