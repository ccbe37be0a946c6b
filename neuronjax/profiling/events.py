"""The contents of a trace, whatever its format: slices on tracks, arrows between them, counters.

A core has lanes: programs, kernels, engines, DMA queues and streams of collectives. The programs'
lane shows every run. Kernels and instructions are shown for a program's first run on its first
core, since other runs and cores are alike: kernels from their start to their end, in several rows
where they overlap, between what the runtime does before and after them. A kernel in a loop is shown
as often as it runs, up to a limit; instructions are shown for the beginning of each kernel. Arrows
lead from a signal to the instruction that waited for it.

Times are ns from the beginning of the recording: real ones on the host; runs on the device take
simulated time from when they were enqueued.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from neuronjax.profiling.records import (
    COMPILATION,
    DISPATCH,
    INPUT,
    KernelProfile,
    Profile,
    ProgramProfile,
    Run,
)
from neuronjax.profiling.session import host_phases
from neuronjax.timing.timeline import sampled

MOST_RUNS = 20_000
MOST_RUNS_OF_KERNEL = 256

_FIXED = (
    "programs", "kernels", "tensor", "vector", "scalar", "gpsimd", "sync", "host",
    COMPILATION, INPUT, DISPATCH,
)  # fmt: skip
HOST = 1_000_000
"""The number of the host among the cores."""
_QUEUE, _STREAM = 100, 1_000
_MOST_ROWS = 1_000
_COUNTERS = {"hbm": "HBM scratch", "sbuf": "SBUF per partition", "psum": "PSUM per partition"}

_SAME_NS = 1e-3
"""Slices that overlap by less than this count as consecutive."""


@dataclass(frozen=True, slots=True)
class Track:
    """A row of a lane of a core; slices of one row do not overlap."""

    core: int
    lane: str
    row: int = 0

    @property
    def number(self) -> int:
        """The track's position among the tracks of the core."""
        return _lane_number(self.lane) * _MOST_ROWS + self.row

    @property
    def title(self) -> str:
        """The title that viewers show."""
        return _title(self.lane) + (f" ({self.row + 1})" if self.row else "")


@dataclass(slots=True, kw_only=True)
class Slice:
    """A program, kernel, instruction or transfer from its start to its end."""

    track: Track
    name: str
    start_ns: float
    duration_ns: float
    details: Mapping[str, Any]

    @property
    def end_ns(self) -> float:
        """The end of the slice, in ns."""
        return self.start_ns + self.duration_ns

    @property
    def category(self) -> str:
        """The kind of its lane, such as ``queue``."""
        return self.track.lane.split()[0]


@dataclass(frozen=True, slots=True)
class Counter:
    """Bytes in use in a core's memory from a moment on."""

    core: int
    name: str
    at_ns: float
    nbytes: float


@dataclass(frozen=True, slots=True)
class Arrow:
    """A signal from one slice to another that waited for it."""

    cause: Slice
    effect: Slice


@dataclass(slots=True)
class Trace:
    """All tracks and what is on them; `cores` maps a core's number to its title."""

    target: str
    cores: dict[int, str] = field(default_factory=dict)
    tracks: list[Track] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)
    counters: list[Counter] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)


def trace(profile: Profile, *, with_host: bool = True) -> Trace:
    """The trace of a recording; its host has tracks of its own."""
    result = Trace(profile.machine.target)
    if with_host:
        result.slices += [
            _slice(HOST, phase, name, start, end - start, {"clock": "real time"})
            for phase, name, start, end in itertools.islice(host_phases(profile), MOST_RUNS)
        ]
    seen: set[int] = set()
    for number, run in enumerate(profile.runs[:MOST_RUNS]):
        program = profile.programs[run.program]
        details = {"run": number} | ({"assumed": program.caveat} if program.caveat else {})
        result.slices += [
            _slice(core, "programs", program.name, run.start_ns, program.total_ns, details)
            for core in run.cores
        ]
        result.counters.append(Counter(run.cores[0], "HBM tensors", run.start_ns, run.tensor_bytes))
        if run.program not in seen:
            seen.add(run.program)
            _add_detail(result, program, run)
    result.tracks = _spread(result.slices)
    cores = sorted({track.core for track in result.tracks})
    result.cores = {
        core: "Host, in real time"
        if core == HOST
        else f"NeuronCore {core} ({profile.machine.chip})"
        for core in cores
    }
    return result


def _spread(slices: list[Slice]) -> list[Track]:
    """Moves overlapping slices of a lane to further rows of it, and returns all tracks.

    Viewers drop slices of one row that overlap without being nested.
    """
    ends: dict[Track, list[float]] = {}
    for slice_ in sorted(slices, key=lambda slice_: slice_.start_ns):
        lane = slice_.track
        rows = ends.setdefault(lane, [])
        free = (number for number, end in enumerate(rows) if end <= slice_.start_ns + _SAME_NS)
        row = next(free, len(rows))
        if row == len(rows):
            rows.append(slice_.end_ns)
        rows[row] = slice_.end_ns
        slice_.track = Track(lane.core, lane.lane, row)
    return [
        Track(lane.core, lane.lane, row) for lane, rows in ends.items() for row in range(len(rows))
    ]


def _add_detail(trace: Trace, program: ProgramProfile, run: Run) -> None:
    core = run.cores[0]
    trace.slices += [
        _slice(core, "kernels", name, run.start_ns + start, end - start, {})
        for name, start, end in launches(program)
    ]
    for kernel in program.kernels:
        trace.slices += _kernel(kernel, core, run.start_ns)
        _add_instructions(trace, kernel, core, run.start_ns + kernel.start_ns)
    trace.counters += [
        Counter(core, _COUNTERS[memory], run.start_ns + at, nbytes)
        for memory, levels in program.levels.items()
        for at, nbytes in [(0.0, 0), *levels]
    ]


def launches(program: ProgramProfile) -> list[tuple[str, float, float]]:
    """Name, start and end of what the runtime does before the first kernel, and after the last."""
    first = min((kernel.start_ns for kernel in program.kernels), default=program.total_ns)
    last = max((kernel.end_ns for kernel in program.kernels), default=program.total_ns)
    around = [("program start", 0.0, first), ("program end", last, program.total_ns)]
    return [(name, start, end) for name, start, end in around if end > start]


def _add_instructions(trace: Trace, kernel: KernelProfile, core: int, start: float) -> None:
    """Adds a kernel's spans, with arrows from signals to the spans that waited for them."""
    details = {"kernel": kernel.name}
    slices = [
        _slice(core, span.lane, span.mnemonic, start + span.start, span.end - span.start, details)
        for span in kernel.spans
    ]
    trace.slices += slices
    trace.arrows += [
        Arrow(slices[span.after], own)
        for span, own in zip(kernel.spans, slices, strict=True)
        if span.after >= 0
    ]


def _kernel(kernel: KernelProfile, core: int, start: float) -> Iterator[Slice]:
    details = {
        "source": kernel.source, "operations": ", ".join(kernel.operations), "path": kernel.path,
        "limited by": kernel.critical, "runs": kernel.runs,
        "adds to the run, ns": kernel.added_ns,
        "busy %": {name: round(100 * time / (kernel.span_ns or 1), 1)
                   for name, time in kernel.busy_ns.items() if time},
        "hbm_bytes": kernel.work.get("hbm_read_bytes", 0) + kernel.work.get("hbm_write_bytes", 0),
        "flops": kernel.work.get("hardware_flops", 0),
    }  # fmt: skip
    lane = "collective kernels" if kernel.critical == "collective" else "kernels"
    for begin, end in sampled(kernel.in_time, MOST_RUNS_OF_KERNEL):
        yield _slice(core, lane, kernel.name, start + begin, end - begin, details)


def _slice(
    core: int, lane: str, name: str, start: float, duration: float, details: Mapping[str, Any]
) -> Slice:
    return Slice(
        track=Track(core, lane), name=name, start_ns=start, duration_ns=duration, details=details
    )


def _lane_number(lane: str) -> int:
    """The number of a lane, which is also its position."""
    if lane in _FIXED:
        return _FIXED.index(lane)
    if lane == "collective kernels":
        return _STREAM - 1
    kind, _, number = lane.partition(" ")
    return (_QUEUE if kind == "queue" else _STREAM) + int(number)


def _title(lane: str) -> str:
    kind, _, number = lane.partition(" ")
    return {"queue": f"DMA queue {number}", "stream": f"CC core stream {number}"}.get(kind, lane)
