"""What a trace shows, before it has a format: slices on tracks, arrows between them, counters.

A core has lanes: programs, kernels, engines, DMA queues and streams of collectives. All runs are
there as programs. Kernels and instructions are those of a program's first run on its first core:
other runs, and other cores of the same program, are alike. Of kernels in loops every run is there
up to a limit, evenly placed; instructions are there for the beginning of each kernel. Arrows go
from the signal that an instruction waited for to the instruction.

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
"""What ends and what begins then do not overlap."""


@dataclass(frozen=True, slots=True)
class Track:
    """A row of a lane of a core; slices of one row do not overlap."""

    core: int
    lane: str
    row: int = 0

    @property
    def number(self) -> int:
        """Its place among the tracks of the core."""
        return _place(self.lane) * _MOST_ROWS + self.row

    @property
    def title(self) -> str:
        """What people read."""
        return _title(self.lane) + (f" ({self.row + 1})" if self.row else "")


@dataclass(slots=True, kw_only=True)
class Slice:
    """Something that lasts."""

    track: Track
    name: str
    start_ns: float
    duration_ns: float
    details: Mapping[str, Any]

    @property
    def end_ns(self) -> float:
        """When it ends."""
        return self.start_ns + self.duration_ns

    @property
    def category(self) -> str:
        """The kind of its lane."""
        return self.track.lane.split()[0]


@dataclass(frozen=True, slots=True)
class Counter:
    """Bytes of a memory of a core from a time on."""

    core: int
    name: str
    at_ns: float
    nbytes: float


@dataclass(frozen=True, slots=True)
class Arrow:
    """A signal from one slice to one that waited for it."""

    cause: Slice
    effect: Slice


@dataclass(slots=True)
class Trace:
    """All of it; `cores` are titles of cores by their numbers."""

    target: str
    cores: dict[int, str] = field(default_factory=dict)
    tracks: list[Track] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)
    counters: list[Counter] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)


def trace(profile: Profile) -> Trace:
    """The trace of a recording."""
    found = Trace(profile.machine.target)
    seen: set[int] = set()
    for number, run in enumerate(profile.runs[:MOST_RUNS]):
        program = profile.programs[run.program]
        for core in run.cores:
            found.slices.append(
                _slice(
                    core, "programs", program.name, run.start_ns, program.total_ns, {"run": number}
                )
            )
        found.counters.append(Counter(run.cores[0], "HBM tensors", run.start_ns, run.tensor_bytes))
        if run.program not in seen:
            seen.add(run.program)
            _add_detail(found, program, run)
    found.tracks = _spread(found.slices)
    cores = sorted({track.core for track in found.tracks})
    found.cores = {core: f"NeuronCore {core} ({profile.machine.chip})" for core in cores}
    return found


def _spread(slices: list[Slice]) -> list[Track]:
    """Moves slices that overlap in a lane to further rows of it; all tracks.

    Viewers drop slices of one row that overlap and are not within each other.
    """
    ends: dict[Track, list[float]] = {}
    for each in sorted(slices, key=lambda one: one.start_ns):
        lane = each.track
        rows = ends.setdefault(lane, [])
        free = (number for number, end in enumerate(rows) if end <= each.start_ns + _SAME_NS)
        row = next(free, len(rows))
        if row == len(rows):
            rows.append(each.end_ns)
        rows[row] = each.end_ns
        each.track = Track(lane.core, lane.lane, row)
    return [
        Track(lane.core, lane.lane, row) for lane, rows in ends.items() for row in range(len(rows))
    ]


def _add_detail(found: Trace, program: ProgramProfile, run: Run) -> None:
    core = run.cores[0]
    memories = ("HBM scratch", "SBUF per partition", "PSUM per partition")
    for each in program.kernels:
        start = run.start_ns + each.start_ns
        found.slices += _kernel(each, core, run.start_ns)
        _add_instructions(found, each, core, start)
        sizes = (each.hbm_scratch_bytes, each.sbuf_bytes, each.psum_bytes)
        found.counters += [
            Counter(core, name, start, size) for name, size in zip(memories, sizes, strict=True)
        ]
    end = run.start_ns + program.total_ns
    found.counters += [Counter(core, name, end, 0) for name in memories]


def _add_instructions(found: Trace, kernel: KernelProfile, core: int, start: float) -> None:
    """The detailed part of a kernel, with arrows from signals to those who waited for them."""
    details = {"kernel": kernel.name}
    slices = [
        _slice(core, span.lane, span.mnemonic, start + span.start, span.end - span.start, details)
        for span in kernel.spans
    ]
    found.slices += slices
    found.arrows += [
        Arrow(slices[span.after], own)
        for span, own in zip(kernel.spans, slices, strict=True)
        if span.after >= 0
    ]


def starts(kernel: KernelProfile, most: int) -> list[float]:
    """When the runs of a kernel begin: evenly from its first to its last, at most so many."""
    count = min(kernel.runs, most)
    whole = max(0.0, kernel.end_ns - kernel.start_ns - kernel.duration_ns)
    step = whole / max(kernel.runs - 1, 1)
    return [kernel.start_ns + step * position for position in range(count)]


def _kernel(each: KernelProfile, core: int, start: float) -> Iterator[Slice]:
    details = {
        "source": each.source, "operations": ", ".join(each.operations), "path": each.path,
        "limited by": each.critical, "runs": each.runs,
        "busy %": {name: round(100 * time / (each.duration_ns or 1), 1)
                   for name, time in each.busy_ns.items() if time},
        "hbm_bytes": each.work.get("hbm_read_bytes", 0) + each.work.get("hbm_write_bytes", 0),
        "flops": each.work.get("hardware_flops", 0),
    }  # fmt: skip
    lane = "collective kernels" if each.critical == "collective" else "kernels"
    for begin in starts(each, MOST_RUNS_OF_KERNEL):
        yield _slice(core, lane, each.name, start + begin, each.duration_ns, details)


def _slice(
    core: int, lane: str, name: str, start: float, duration: float, details: Mapping[str, Any]
) -> Slice:
    return Slice(
        track=Track(core, lane), name=name, start_ns=start, duration_ns=duration, details=details
    )


def _place(lane: str) -> int:
    """The number of a lane: also its place."""
    if lane in _FIXED:
        return _FIXED.index(lane)
    if lane == "collective kernels":
        return _STREAM - 1
    kind, _, number = lane.partition(" ")
    return (_QUEUE if kind == "queue" else _STREAM) + int(number)


def _title(lane: str) -> str:
    kind, _, number = lane.partition(" ")
    return {"queue": f"DMA queue {number}", "stream": f"CC core stream {number}"}.get(kind, lane)
