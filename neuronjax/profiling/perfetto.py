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


def document(profile: Profile) -> dict[str, Any]:
    """The contents of trace.json."""
    return {
        "displayTimeUnit": "ns",
        "otherData": {"is_simulation": True, "target": profile.machine.target},
        "traceEvents": [*_named(profile), *_events(profile)],
    }


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
        flow = f"{run.program}.{number}"
        for position, span in enumerate(each.spans):
            at = start + span.start
            yield _slice(
                core, span.lane, span.mnemonic, at, span.end - span.start, {"kernel": each.name}
            )
            if span.after >= 0:
                cause = each.spans[span.after]
                before = start + max(cause.start, cause.end - 1)
                yield from _arrow(core, (cause.lane, before), (span.lane, at), f"{flow}.{position}")
        yield _counter(core, "HBM scratch", start, each.hbm_scratch_bytes)
        yield _counter(core, "SBUF per partition", start, each.sbuf_bytes)
        yield _counter(core, "PSUM per partition", start, each.psum_bytes)
    for name in ("HBM scratch", "SBUF per partition", "PSUM per partition"):
        yield _counter(core, name, run.start_ns + program.total_ns, 0)


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
        "ph": "X", "pid": core, "tid": _lane(lane), "name": name, "cat": lane.split()[0],
        "ts": start * US, "dur": duration * US, "args": details,
    }  # fmt: skip


def _counter(core: int, name: str, at: float, value: float) -> dict[str, Any]:
    return {"ph": "C", "pid": core, "name": name, "ts": at * US, "args": {"bytes": value}}


def _arrow(
    core: int, begin: tuple[str, float], end: tuple[str, float], number: str
) -> Iterator[dict[str, Any]]:
    common = {"pid": core, "name": "signal", "cat": "semaphore", "id": number}
    yield {**common, "ph": "s", "tid": _lane(begin[0]), "ts": begin[1] * US}
    yield {**common, "ph": "f", "bp": "e", "tid": _lane(end[0]), "ts": end[1] * US}


def _named(profile: Profile) -> Iterator[dict[str, Any]]:
    cores = sorted({core for run in profile.runs for core in run.cores})
    detailed = {run.cores[0] for run in profile.runs}
    lanes = {span.lane for each in profile.programs for k in each.kernels for span in k.spans}
    others = sorted(lanes - set(_FIXED), key=_lane)
    for core in cores:
        yield _meta(core, 0, "process_name", f"NeuronCore {core} ({profile.machine.chip})")
        yield {"ph": "M", "pid": core, "name": "process_sort_index", "args": {"sort_index": core}}
        names = [*_FIXED, *others, "collective kernels"] if core in detailed else ["programs"]
        for lane in names:
            yield _meta(core, _lane(lane), "thread_name", _title(lane))
            order = {"sort_index": _lane(lane)}
            common = {"ph": "M", "pid": core, "tid": _lane(lane)}
            yield {**common, "name": "thread_sort_index", "args": order}


def _title(lane: str) -> str:
    kind, _, number = lane.partition(" ")
    return {"queue": f"DMA queue {number}", "stream": f"CC core stream {number}"}.get(kind, lane)


def _meta(core: int, lane: int, name: str, value: str) -> dict[str, Any]:
    return {"ph": "M", "pid": core, "tid": lane, "name": name, "args": {"name": value}}
