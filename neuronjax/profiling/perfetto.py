"""The trace in Chrome's JSON, which Perfetto and chrome://tracing open.

A process of the trace is a core; its lanes are programs, kernels, engines, DMA queues and streams
of collectives. All runs are there as programs. Kernels and instructions are those of a program's
first run on its first core: other runs, and other cores of the same program, are alike. Of kernels
in loops every run is there up to a limit, evenly placed; instructions are there for the beginning
of each kernel. Arrows go from the signal that an instruction waited for to the instruction.

Times are µs, as the format wants; fractions are kept. Source: "Trace Event Format" (Google).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neuronjax.profiling.records import KernelProfile, Profile, ProgramProfile, Run

US = 1e-3
MOST_RUNS = 20_000
MOST_RUNS_OF_KERNEL = 256

_FIXED = ("programs", "kernels", "tensor", "vector", "scalar", "gpsimd", "sync", "host")
_QUEUE, _STREAM = 100, 1_000
_MOST_ROWS = 1_000
_SAME = 1e-6
"""µs: what ends and what begins then do not overlap."""


def document(profile: Profile) -> dict[str, Any]:
    """The contents of trace.json."""
    events = list(_events(profile))
    rows = _rows(events)
    return {
        "displayTimeUnit": "ns",
        "otherData": {"is_simulation": True, "target": profile.machine.target},
        "traceEvents": [*_named(profile, rows), *map(_finished, events)],
    }


def _rows(events: list[dict[str, Any]]) -> dict[tuple[int, str], int]:
    """Moves slices that overlap in a lane to further rows of it: core and lane -> how many.

    Perfetto drops slices of one row that overlap and are not within each other.
    """
    ends: dict[tuple[int, str], list[float]] = {}
    slices = [each for each in events if each["ph"] == "X"]
    for each in sorted(slices, key=lambda one: one["ts"]):
        rows = ends.setdefault((each["pid"], each["lane"]), [])
        start, end = each["ts"], each["ts"] + each["dur"]
        free = (number for number, until in enumerate(rows) if until <= start + _SAME)
        row = next(free, len(rows))
        if row == len(rows):
            rows.append(end)
        rows[row] = end
        each["tid"] = _tid(each["lane"], row)
    return {key: len(rows) for key, rows in ends.items()}


def _tid(lane: str, row: int) -> int:
    return _lane(lane) * _MOST_ROWS + row


def _finished(event: dict[str, Any]) -> dict[str, Any]:
    """An event without what only the way here needed; arrows go where their slices are."""
    own = event.get("slice")
    found = {name: value for name, value in event.items() if name not in ("lane", "slice")}
    return found if own is None else {**found, "tid": own["tid"]}


def _events(profile: Profile) -> Iterator[dict[str, Any]]:
    seen: set[int] = set()
    for number, run in enumerate(profile.runs[:MOST_RUNS]):
        program = profile.programs[run.program]
        for core in run.cores:
            yield _slice(
                core, "programs", program.name, run.start_ns, program.total_ns, {"run": number}
            )
        yield _counter(run.cores[0], "HBM tensors", run.start_ns, run.tensor_bytes)
        if run.program not in seen:
            seen.add(run.program)
            yield from _detail(program, run)


def _detail(program: ProgramProfile, run: Run) -> Iterator[dict[str, Any]]:
    core = run.cores[0]
    for number, each in enumerate(program.kernels):
        start = run.start_ns + each.start_ns
        yield from _kernel(each, core, run.start_ns)
        yield from _instructions(each, core, start, f"{run.program}.{number}")
        yield _counter(core, "HBM scratch", start, each.hbm_scratch_bytes)
        yield _counter(core, "SBUF per partition", start, each.sbuf_bytes)
        yield _counter(core, "PSUM per partition", start, each.psum_bytes)
    for name in ("HBM scratch", "SBUF per partition", "PSUM per partition"):
        yield _counter(core, name, run.start_ns + program.total_ns, 0)


def _instructions(
    kernel: KernelProfile, core: int, start: float, name: str
) -> Iterator[dict[str, Any]]:
    """The detailed part of a kernel, with arrows from signals to those who waited for them."""
    details = {"kernel": kernel.name}
    slices = [
        _slice(core, span.lane, span.mnemonic, start + span.start, span.end - span.start, details)
        for span in kernel.spans
    ]
    yield from slices
    for position, span in enumerate(kernel.spans):
        if span.after >= 0:
            cause, number = slices[span.after], f"{name}.{position}"
            common = {"pid": core, "name": "signal", "cat": "semaphore", "id": number}
            before = cause["ts"] + max(0.0, cause["dur"] - US)
            yield {**common, "ph": "s", "slice": cause, "ts": before}
            own = slices[position]
            yield {**common, "ph": "f", "bp": "e", "slice": own, "ts": own["ts"]}


def starts(kernel: KernelProfile, most: int) -> list[float]:
    """When the runs of a kernel begin: evenly from its first to its last, at most so many."""
    count = min(kernel.runs, most)
    whole = max(0.0, kernel.end_ns - kernel.start_ns - kernel.duration_ns)
    step = whole / max(kernel.runs - 1, 1)
    return [kernel.start_ns + step * position for position in range(count)]


def _kernel(each: KernelProfile, core: int, start: float) -> Iterator[dict[str, Any]]:
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


def _lane(lane: str) -> int:
    """The number of a lane: also its place."""
    if lane in _FIXED:
        return _FIXED.index(lane)
    if lane == "collective kernels":
        return _STREAM - 1
    kind, _, number = lane.partition(" ")
    return (_QUEUE if kind == "queue" else _STREAM) + int(number)


def _slice(
    core: int, lane: str, name: str, start: float, duration: float, details: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X", "pid": core, "lane": lane, "name": name, "cat": lane.split()[0],
        "ts": start * US, "dur": duration * US, "args": details,
    }  # fmt: skip


def _counter(core: int, name: str, at: float, value: float) -> dict[str, Any]:
    return {"ph": "C", "pid": core, "name": name, "ts": at * US, "args": {"bytes": value}}


def _named(profile: Profile, rows: dict[tuple[int, str], int]) -> Iterator[dict[str, Any]]:
    for core in sorted({core for core, _ in rows}):
        yield _meta(core, 0, "process_name", f"NeuronCore {core} ({profile.machine.chip})")
        yield {"ph": "M", "pid": core, "name": "process_sort_index", "args": {"sort_index": core}}
    for (core, lane), count in rows.items():
        for row in range(count):
            tid = _tid(lane, row)
            yield _meta(core, tid, "thread_name", _title(lane) + (f" ({row + 1})" if row else ""))
            common = {"ph": "M", "pid": core, "tid": tid}
            yield {**common, "name": "thread_sort_index", "args": {"sort_index": tid}}


def _title(lane: str) -> str:
    kind, _, number = lane.partition(" ")
    return {"queue": f"DMA queue {number}", "stream": f"CC core stream {number}"}.get(kind, lane)


def _meta(core: int, lane: int, name: str, value: str) -> dict[str, Any]:
    return {"ph": "M", "pid": core, "tid": lane, "name": name, "args": {"name": value}}
