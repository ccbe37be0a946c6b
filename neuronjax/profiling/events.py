"""The contents of a trace, whatever its format: slices on tracks, arrows between them, counters.

A core has lanes: programs, kernels, engines, DMA queues and streams of collectives. The programs'
lane shows every run. Kernels and instructions are shown for a program's first run on its first
core, since other runs and cores are alike. A kernel in a loop is shown as often as it runs, up to
a limit and evenly spaced; instructions are shown for the beginning of each kernel. Arrows lead from
a signal to the instruction that waited for it.

Times are ns from the beginning of the recording, on the simulated clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from neuronjax.profiling.records import KernelProfile, Profile, ProgramProfile, Run

MOST_RUNS = 20_000
MOST_RUNS_OF_KERNEL = 256

_FIXED = ("programs", "kernels", "tensor", "vector", "scalar", "gpsimd", "sync", "host")
_QUEUE, _STREAM = 100, 1_000
_MOST_ROWS = 1_000
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
        """Its position among the tracks of the core."""
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
        """When it ends, in ns."""
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


def trace(profile: Profile) -> Trace:
    """The trace of a recording."""
    result = Trace(profile.machine.target)
    seen: set[int] = set()
    for number, run in enumerate(profile.runs[:MOST_RUNS]):
        program = profile.programs[run.program]
        for core in run.cores:
            result.slices.append(
                _slice(
                    core, "programs", program.name, run.start_ns, program.total_ns, {"run": number}
                )
            )
        result.counters.append(Counter(run.cores[0], "HBM tensors", run.start_ns, run.tensor_bytes))
        if run.program not in seen:
            seen.add(run.program)
            _add_detail(result, program, run)
    result.tracks = _spread(result.slices)
    cores = sorted({track.core for track in result.tracks})
    result.cores = {core: f"NeuronCore {core} ({profile.machine.chip})" for core in cores}
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
    memories = ("HBM scratch", "SBUF per partition", "PSUM per partition")
    for kernel in program.kernels:
        start = run.start_ns + kernel.start_ns
        trace.slices += _kernel(kernel, core, run.start_ns)
        _add_instructions(trace, kernel, core, start)
        sizes = (kernel.hbm_scratch_bytes, kernel.sbuf_bytes, kernel.psum_bytes)
        trace.counters += [
            Counter(core, name, start, size) for name, size in zip(memories, sizes, strict=True)
        ]
    end = run.start_ns + program.total_ns
    trace.counters += [Counter(core, name, end, 0) for name in memories]


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


def starts(kernel: KernelProfile, most: int) -> list[float]:
    """Start times of at most `most` runs of a kernel, evenly spaced from the first to the last."""
    count = min(kernel.runs, most)
    whole = max(0.0, kernel.end_ns - kernel.start_ns - kernel.duration_ns)
    step = whole / max(kernel.runs - 1, 1)
    return [kernel.start_ns + step * position for position in range(count)]


def _kernel(kernel: KernelProfile, core: int, start: float) -> Iterator[Slice]:
    details = {
        "source": kernel.source, "operations": ", ".join(kernel.operations), "path": kernel.path,
        "limited by": kernel.critical, "runs": kernel.runs,
        "busy %": {name: round(100 * time / (kernel.duration_ns or 1), 1)
                   for name, time in kernel.busy_ns.items() if time},
        "hbm_bytes": kernel.work.get("hbm_read_bytes", 0) + kernel.work.get("hbm_write_bytes", 0),
        "flops": kernel.work.get("hardware_flops", 0),
    }  # fmt: skip
    lane = "collective kernels" if kernel.critical == "collective" else "kernels"
    for begin in starts(kernel, MOST_RUNS_OF_KERNEL):
        yield _slice(core, lane, kernel.name, start + begin, kernel.duration_ns, details)


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
