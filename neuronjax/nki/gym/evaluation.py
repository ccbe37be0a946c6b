"""A kernel judged in one call: values, races, capacity, time, counters, bounds and slow lines."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np
from numpy.typing import ArrayLike

from neuronjax.display import Displayed, Table, duration, nbytes, percent
from neuronjax.emulate.core import DataflowOrder, Order, ProgramOrder
from neuronjax.errors import ExecutionError, KernelError, NeuronError, RaceError, shown_line
from neuronjax.native_kernels import NativeKernel
from neuronjax.nki.arrays import stored
from neuronjax.nki.assembly import ADVICE
from neuronjax.nki.calls import call
from neuronjax.nki.gym.agreement import Agreement, Bounds, agreements
from neuronjax.nki.gym.slow_lines import SlowLine, slow_lines
from neuronjax.nki.kernel import kernel_of
from neuronjax.nki.profiling import machine_of, platform_of, profiled
from neuronjax.profiling.records import Profile
from neuronjax.profiling.summary import summary
from neuronjax.program.operand import Kind
from neuronjax.program.verify import verify
from neuronjax.timing.calibration import CALIBRATION
from neuronjax.timing.schedule import schedule

Document: TypeAlias = dict[str, Any]
"""An object of JSON: evaluations, or what a process is asked or hands on."""

OK, WRONG, RACE, REFUSED, FAILED, ENDED = "ok", "wrong", "race", "refused", "failed", "ended"
STATUSES: Mapping[str, str] = {
    OK: "it runs, and its values agree where a reference was given",
    WRONG: "its values are not those of the reference",
    RACE: "its values depend on the order in which engines run",
    REFUSED: "the chip or its memories do not take it",
    FAILED: "it, or its reference, raised an error",
    ENDED: "it was stopped for what it took or touched",
}
"""What an evaluation may come to."""

COUNTERS = (
    "total_time", "hbm_read_bytes", "hbm_write_bytes", "spill_save_bytes", "spill_reload_bytes",
    "hardware_flops", "transpose_flops", "hfu_estimated_percent", "mbu_estimated_percent",
    "mm_arithmetic_intensity", "peak_flops_bandwidth_ratio",
    "tensor_engine_active_time_percent", "vector_engine_active_time_percent",
    "scalar_engine_active_time_percent", "gpsimd_engine_active_time_percent",
    "dma_active_time_percent", "matmul_instruction_count", "dma_transfer_count",
    "dma_transfer_average_bytes", "sbuf_read_bytes", "sbuf_write_bytes", "psum_read_bytes",
    "psum_write_bytes",
)  # fmt: skip
"""Fields of neuron-profile's summary; percentages are shares of one, as there."""

_ORDERS: tuple[Order, ...] = (ProgramOrder(), DataflowOrder(seed=0, adversarial=True))


@dataclass(frozen=True, kw_only=True)
class Times:
    """The times of one run of a kernel, in ns."""

    #: On the device, launch included, as `nki.benchmark` gives it; and of that the launch.
    device_ns: float
    launch_ns: float
    #: The host's call of a program, beside the device.
    host_call_ns: float
    #: Lower bounds of what the kernel's instructions take, by resource, from peak rates alone.
    bounds_ns: Mapping[str, float]
    #: What it takes to read each argument and write each result once at HBM's bandwidth.
    essential_ns: float

    @property
    def kernel_ns(self) -> float:
        """The time on the device without the launch."""
        return self.device_ns - self.launch_ns

    @property
    def bound(self) -> str:
        """The resource with the greatest bound."""
        return max(self.bounds_ns, key=lambda name: self.bounds_ns[name])

    @property
    def distance(self) -> float:
        """How many times its greatest bound the kernel takes."""
        greatest = self.bounds_ns[self.bound]
        return self.kernel_ns / greatest if greatest else math.inf


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The most that tiles take of a partition, of what it has."""

    used_bytes: int
    capacity_bytes: int


@dataclass(frozen=True, kw_only=True, repr=False)
class Evaluation(Displayed):
    """What is known of a kernel for some inputs."""

    kernel: str
    #: The chip.
    target: str
    status: str
    #: Why it is not ok.
    reason: str = ""
    values: tuple[Agreement, ...] = ()
    times: Times | None = None
    #: By `COUNTERS`.
    counters: Mapping[str, float] = dataclasses.field(default_factory=dict)
    #: Runs of instructions by mnemonic.
    instructions: Mapping[str, int] = dataclasses.field(default_factory=dict)
    #: "sbuf" and "psum".
    memories: Mapping[str, Memory] = dataclasses.field(default_factory=dict)
    lines: tuple[SlowLine, ...] = ()
    #: What its time assumes, such as one trip of a loop whose trips depend on data.
    assumed: tuple[str, ...] = ()
    #: What `kernel.trace` notes and runs warn of.
    notes: tuple[str, ...] = ()

    @property
    def is_ok(self) -> bool:
        """Whether it runs and its values agree."""
        return self.status == OK

    @property
    def device_ns(self) -> float:
        """The kernel's time on the device; infinite if it is not known."""
        return math.inf if self.times is None else self.times.device_ns

    def to_json(self) -> Document:
        """Plain dictionaries and lists; what is not finite is None. The same in every run."""
        derived = {}
        if self.times is not None:
            names = ("kernel_ns", "bound", "distance")
            derived = {name: getattr(self.times, name) for name in names}
        document = dataclasses.asdict(self)
        if document["times"] is not None:
            document["times"] |= derived
        for row, agreement in zip(document["values"], self.values, strict=True):
            row["agrees"] = agreement.agrees
        plain: Document = _finite(document)
        return plain

    def parts(self) -> Iterator[str | Table]:
        reason = f": {self.reason}" if self.reason else ""
        yield f"{self.kernel} on a core of {self.target}: {self.status}{reason}"
        if self.times is not None:
            yield Table([*_times(self.times), *_used(self.memories)])
        if self.counters:
            rows = [(name, f"{self.counters[name]:,.6g}") for name in COUNTERS]
            yield Table(rows, title="Counters")
        if self.lines:
            yield Table([*map(_line, self.lines)], head=("line", "adds", "waits for"))
        if self.assumed or self.notes:
            yield "\n".join((*(f"assumed: {what}" for what in self.assumed), *self.notes))


def _finite(value: object) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def _times(times: Times) -> Iterator[tuple[str, ...]]:
    yield "on device", duration(times.device_ns), f"({duration(times.launch_ns)} of it the launch)"
    if times.host_call_ns:
        yield "host's call", duration(times.host_call_ns), "(beside the device)"
    least = times.bounds_ns[times.bound]
    distance = f"({times.bound}; the kernel takes {times.distance:.2f} times that)"
    yield "bound", duration(least), distance
    yield "essential", duration(times.essential_ns), "(arguments and results once, through HBM)"


def _used(memories: Mapping[str, Memory]) -> Iterator[tuple[str, ...]]:
    for name, memory in memories.items():
        share = percent(memory.used_bytes, memory.capacity_bytes)
        yield name, nbytes(memory.used_bytes), f"of a partition ({share})"


def _line(line: SlowLine) -> tuple[str, ...]:
    waits = "; ".join(
        f"{wait.resource} of {shown_line(wait.line)} {duration(wait.ns)}" for wait in line.waits_for
    )
    return shown_line(line.line), duration(line.time_ns), waits


def evaluate(
    kernel: Callable[..., object],
    reference: Callable[..., object] | Sequence[ArrayLike] | np.ndarray | None,
    inputs: Sequence[object] | Mapping[str, object],
    *,
    target: str | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> Evaluation:
    """Judges a kernel for `inputs`, which are its arguments by position or by name.

    Its values are computed by the emulator in the order of the program and in one where transfers
    end as late as possible, which finds races, and compared with those of `reference`: a function
    of the same arguments, its results, or None. Time, counters and lines need no values.

    Args:
      target: the machine, as for `simulate`.
      rtol, atol: of each result's bound, ``|result - expected| <= atol + rtol · |expected|``;
        default: what fits its type (see `agreement.Bounds`).

    An error of the kernel, of the chip about it or of the reference is the result's `reason`.

    Raises:
      KernelError: `inputs` are neither a sequence nor a mapping.
    """
    positional, named = _arguments(inputs)
    checked = kernel_of(kernel)
    name, notes = checked.function.__name__, []
    chip = ""
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            called = call(checked.function, positional, named)
            traced = checked.compile(called, target)
        notes = [*traced.notes, *(str(warning.message) for warning in warned)]
        chip = traced.program.target.chip
        expected = expected_of(reference, positional, named)
        arrays = [np.asarray(array) for array in called.arrays]
    except NeuronError as error:
        return Evaluation(kernel=name, target=chip, status=REFUSED, reason=str(error))
    except Exception as error:
        return Evaluation(kernel=name, target=chip, status=FAILED, reason=described(error))
    return judge(traced.native, expected, arrays, Bounds(rtol, atol), notes)


def _arguments(inputs: object) -> tuple[tuple[object, ...], dict[str, object]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, Sequence) and not isinstance(inputs, str):
        return tuple(inputs), {}
    raise KernelError(
        f"inputs={type(inputs).__name__} are no arguments; pass a list of them, or a dict by name."
    )


def described(error: BaseException) -> str:
    """An error of somebody's code in one line, with the line where it was raised."""
    trace, place = error.__traceback__, ""
    own = str(Path(__file__).parents[2])
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith((own, "<")):
            place = f"{file}:{trace.tb_lineno}: "
        trace = trace.tb_next
    if isinstance(error, SyntaxError):
        place = f"{error.filename}:{error.lineno}: "
    return f"{place}{type(error).__name__}: {error}"


def expected_of(
    reference: object, positional: Sequence[object], named: Mapping[str, object]
) -> list[np.ndarray] | None:
    """The arrays that a reference gives; None if there is none. Raises what it raises."""
    if reference is None:
        return None
    if callable(reference):
        reference = reference(*copy.deepcopy(tuple(positional)), **copy.deepcopy(dict(named)))
    return [np.asarray(value) for value in jax.tree.leaves(reference)]


def judge(
    native: NativeKernel,
    expected: Sequence[np.ndarray] | None,
    arrays: Sequence[np.ndarray],
    bounds: Bounds,
    notes: Sequence[str] = (),
) -> Evaluation:
    """The evaluation of a compiled kernel for arrays; where `expected` is None, its values are not
    computed, and of `arrays` nothing counts."""
    program = native.program
    refused = [finding for finding in verify(program) if finding.rule not in ADVICE]
    if refused:
        return Evaluation(
            kernel=native.name, target=program.target.chip, status=REFUSED, reason=str(refused[0])
        )
    evaluation = _measured(native, notes)
    if expected is None:
        return evaluation
    remarks = list(evaluation.notes)
    try:
        results = []
        for order in _ORDERS:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                results.append(_run(native, arrays, order))
            remarks += [str(warning.message) for warning in warned]
    except ExecutionError as error:
        status = RACE if isinstance(error, RaceError) else FAILED
        return dataclasses.replace(evaluation, status=status, reason=str(error))
    values = agreements(results[0], expected, bounds)
    status, reason = OK, ""
    wrong = [(number, value) for number, value in enumerate(values) if not value.agrees]
    if wrong:
        status, reason = WRONG, f"result[{wrong[0][0]}] {wrong[0][1]}"
    elif any(own.tobytes() != late.tobytes() for own, late in zip(*results, strict=True)):
        status, reason = RACE, "results are other ones where transfers end as late as possible"
    return dataclasses.replace(
        evaluation,
        status=status,
        reason=reason,
        values=values,
        notes=tuple(dict.fromkeys(remarks)),
    )


def _run(native: NativeKernel, arrays: Sequence[np.ndarray], order: Order) -> list[np.ndarray]:
    """What the kernel returns, or else the new values of what it writes to."""
    given = [stored(np.array(array)) for array in arrays]
    (values,) = native.run([given], order)
    buffers = {buffer.name: buffer for buffer in native.program.buffers}
    names = native.results or tuple(
        buffer.name for buffer in buffers.values() if buffer.kind is Kind.RESULT
    )
    return [np.array(values[name]).reshape(buffers[name].shape) for name in names]


def _measured(native: NativeKernel, notes: Sequence[str]) -> Evaluation:
    """All that needs no values."""
    program = native.program
    machine = machine_of(program)
    platform = platform_of(program)
    timeline = schedule(program, platform=platform)
    recorded = profiled(program)
    (measured,) = recorded.programs
    counters = summary(measured, recorded.machine)
    times = Times(
        device_ns=timeline.total_ns,
        launch_ns=timeline.launch_ns,
        host_call_ns=CALIBRATION.host_call_ns[machine.chip.core.version],
        bounds_ns=dict(measured.bounds_ns),
        essential_ns=1e9 * _essential_bytes(native) / recorded.machine.max_hbm_bandwidth,
    )
    return Evaluation(
        kernel=native.name,
        target=program.target.chip,
        status=OK,
        times=times,
        counters={name: counters[name] for name in COUNTERS},
        instructions=dict(sorted(timeline.instructions.items())),
        memories=_memories(recorded),
        lines=slow_lines(timeline, platform),
        assumed=timeline.assumed,
        notes=tuple(dict.fromkeys(notes)),
    )


def _essential_bytes(native: NativeKernel) -> int:
    kinds = (Kind.ARGUMENT, Kind.RESULT)
    return sum(buffer.extent for buffer in native.program.buffers if buffer.kind in kinds)


def _memories(recorded: Profile) -> dict[str, Memory]:
    (measured,) = recorded.programs
    capacities = {
        "sbuf": recorded.machine.sbuf_partition_bytes,
        "psum": recorded.machine.psum_partition_bytes,
    }
    return {
        name: Memory(
            used_bytes=max((level.nbytes for level in measured.levels.get(name, ())), default=0),
            capacity_bytes=capacity,
        )
        for name, capacity in capacities.items()
    }


def json_text(document: object) -> str:
    """JSON that is the same for equal documents, without numbers that JSON lacks."""
    return json.dumps(document, indent=1, sort_keys=True, allow_nan=False)
