"""The compilation of a kernel's call to a finished program: its arguments, its body, its checks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set

import jax

from neuronjax.errors import (
    KernelError,
    KernelWarning,
    NeuronError,
    UnknownFormatError,
    UnsupportedProgramError,
    quoted,
)
from neuronjax.machine.chips import CHIPS
from neuronjax.nki import scheduling
from neuronjax.nki.arrays import Array, is_array
from neuronjax.nki.assembly import Grid, assembled
from neuronjax.nki.calls import Call, line_of
from neuronjax.nki.carried import carried
from neuronjax.nki.compiled import Compiled
from neuronjax.nki.coverage import unwritten
from neuronjax.nki.dtypes import element_type, stored
from neuronjax.nki.endless import Watch
from neuronjax.nki.hazards import hazards
from neuronjax.nki.known_failures import loop_failures
from neuronjax.nki.sums import unfinished
from neuronjax.nki.tensor import Tensor, whole
from neuronjax.nki.tracing import Trace, callers_of, ended, tracing
from neuronjax.notices import warned
from neuronjax.options import Version
from neuronjax.program import program
from neuronjax.program.operand import Access, Buffer, Kind, Memory


def compiled(
    function: Callable[..., object],
    call: Call,
    chip: str,
    sdk: Version,
    grid: tuple[int, ...] = (),
    ranks: int | None = None,
    schedule: scheduling.Edges = (),
) -> Compiled:
    """The kernel `function` for a call with arrays of those shapes and dtypes, whose values do not
    matter; `grid` are its programs, which run on physical cores beside each other, and `ranks` how
    many logical cores run it, if the caller knows; `schedule` are dependencies of instructions, and
    `sdk` is the release whose failures are noted.

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
        trace = Trace(chip, sdk, grid, number, lines=lines, ranks_of_call=ranks)
        traces.insert(0, trace)
        returned = _traced(function, call, trace)
    buffers = _shared_buffers(name, traces)
    written = _written(traces, returned)
    private = _private(returned) if programs == 1 else []
    declared = {tensor: line for trace in traces for tensor, line in trace.declared.items()}
    _check_results(_named(function), returned, {*written.values(), *private}, buffers, declared)
    grid_of_traces = Grid(
        name,
        traces,
        buffers=_with_results(buffers, written, private),
        aliases=_aliases(traces, written),
        declared=declared,
        promoted={buffer.name: _as_result(buffer) for buffer in private},
    )
    advice = list(dict.fromkeys(part for trace in traces for part in _advice(trace)))
    names = {label: line for trace in traces for label, line in trace.names.items()}
    asked = scheduling.notes(schedule, names, name)
    failures = (text for trace in traces for text in (*trace.remarks, *loop_failures(trace)))
    remarks = dict.fromkeys((*failures, *asked))
    results = [buffer for buffer in buffers if buffer.kind is Kind.RESULT]
    missing = unwritten(traces, [*results, *private])
    assembled_program, notes = assembled(grid_of_traces)
    _warn(advice)
    return Compiled(
        program=assembled_program,
        returned=returned,
        declared=grid_of_traces.declared,
        written={position: _result_of(argument) for position, argument in written.items()},
        changed=frozenset(_written(traces, None)),
        notes=(*notes, *(f"{text}." for _, text in advice), *remarks, *missing),
        grid=grid,
    )


def _advice(trace: Trace) -> Iterator[tuple[str, str]]:
    """Lines of the kernel, and what to mind there."""
    handed_on = {loop.place: str(loop) for loop in carried(trace)}
    yield from handed_on.items()
    for line, text in unfinished(trace):
        if line not in handed_on:
            yield line, f"{line}: {text}"
    others = (*trace.advice.items(), *hazards(trace))
    yield from ((line, f"{line}: {text}") for line, text in others)


def _warn(advice: Sequence[tuple[str, str]]) -> None:
    """Gives what to mind at lines of the kernel as warnings there."""
    for place, text in advice:
        file, _, line = place.rpartition(":")
        warned(f"{text}.", KernelWarning, file, int(line))


def _named(function: Callable[..., object]) -> str:
    """The name of a kernel behind its line."""
    return f"{line_of(function)}: {function.__name__}"


def _traced(function: Callable[..., object], call: Call, trace: Trace) -> object:
    """What the kernel returns; `trace` has what it does."""
    tensors = [
        _argument(trace, f"{_named(function)}({parameter})", leaf)
        for parameter, leaf in zip(call.places, call.leaves, strict=True)
        if is_array(leaf)
    ]
    positional, keywords = call.replaced(tensors)
    token = tracing(trace)
    try:
        with Watch(function.__name__, trace):
            returned = function(*positional, **keywords)
    except NeuronError as error:
        if callers := callers_of(error):
            error.args = (f"{error} Called from {', '.join(callers)}.",)
        raise
    finally:
        ended(token)
        trace.nest.finish()
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


def _private(returned: object) -> list[Buffer]:
    """The tensors of private memory among those that are returned."""
    tensors = [value for value in jax.tree.leaves(returned) if isinstance(value, Tensor)]
    buffers = dict.fromkeys(tensor.storage for tensor in tensors)
    return [b for b in buffers if b.kind is Kind.SCRATCH and not b.on_chip]


def _as_result(buffer: Buffer) -> Buffer:
    return dataclasses.replace(buffer, kind=Kind.RESULT)


def _with_results(
    buffers: Sequence[Buffer], written: Mapping[int, Buffer], private: Sequence[Buffer]
) -> tuple[Buffer, ...]:
    """The buffers, of which `private` ones become results, and one more for each argument that is
    written to."""
    own = (_as_result(buffer) if buffer in private else buffer for buffer in buffers)
    others = (
        dataclasses.replace(_as_result(argument), name=_result_of(argument))
        for argument in written.values()
    )
    return (*own, *others)


def _aliases(traces: Sequence[Trace], written: Mapping[int, Buffer]) -> tuple[program.Alias, ...]:
    """Which results share memory with an argument, and which tiles with another."""
    results = (program.Alias(_result_of(argument), argument.name) for argument in written.values())
    tiles = (program.Alias(name, of) for trace in traces for name, (_, of) in trace.aliases.items())
    return (*results, *tiles)


def _result_of(argument: Buffer) -> str:
    """The name of the result that shares memory with an argument."""
    return f"{argument.name}_written"


def _written(traces: Sequence[Trace], returned: object) -> dict[int, Buffer]:
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


def _argument(trace: Trace, where: str, value: Array) -> Tensor:
    """The tensor of an array; `where` names kernel and parameter."""
    try:
        dtype = element_type(value.dtype.name)
    except UnknownFormatError as error:
        raise KernelError(f"{where}: {error} Convert the array with astype.") from None
    shape = tuple(value.shape)
    if not math.prod(shape):
        raise KernelError(
            f"{where}: the array has the shape {list(shape)}, and no elements; a kernel takes "
            "tensors that have some. Leave the call out for such arrays."
        )
    return whole(trace.buffer(Memory.HBM, stored(dtype), shape, Kind.ARGUMENT), dtype)


def _check_results(
    kernel: str,
    returned: object,
    others: Set[Buffer],
    buffers: Sequence[Buffer],
    declared: Mapping[str, str],
) -> None:
    """Raises unless the kernel, of which `kernel` says where it is, returns whole tensors, results
    among `buffers` or `others`, or writes to an argument.

    Raises: ``UnsupportedProgramError``: it returns something else; ``KernelError``: it has no
    result.
    """
    results = {*others, *(buffer for buffer in buffers if buffer.kind is Kind.RESULT)}
    values = jax.tree.leaves(returned)
    for value in values:
        is_whole = isinstance(value, Tensor) and (
            value.is_contiguous() and value.size == math.prod(value.storage.shape)
        )
        if not is_whole or value.storage.on_chip:
            made = declared.get(value.storage.name) if isinstance(value, Tensor) else None
            raise UnsupportedProgramError(
                f"{kernel} returns {quoted(value)}{f' of {made}' if made else ''}; return whole "
                "tensors of nl.shared_hbm."
            )
        if value.storage not in results:
            raise UnsupportedProgramError(
                f"{kernel} returns a tensor of private memory, of {declared[value.storage.name]}, "
                "of which each program has its own; declare one in nl.shared_hbm, or return an "
                "argument."
            )
    if not values and not any(buffer.kind is Kind.ARGUMENT for buffer in others):
        raise KernelError(
            f"{kernel} returns no tensor and writes to none of its arguments, so it has no "
            "results; return a tensor of nl.shared_hbm."
        )
