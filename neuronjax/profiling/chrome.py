"""The trace in Chrome's JSON, which Perfetto and chrome://tracing open.

A process of the trace is a core, a thread one of its tracks. Times are µs, as the format wants;
fractions are kept. Source: "Trace Event Format" (Google).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neuronjax.profiling.events import Arrow, Counter, Slice, Trace

_US = 1e-3
_BEFORE_END_NS = 1.0
"""Arrows begin so long before their slice ends: at its end they would not be within it."""


def document(trace: Trace) -> dict[str, Any]:
    """The contents of trace.json."""
    return {
        "displayTimeUnit": "ns",
        "otherData": {"is_simulation": True, "target": trace.target},
        "traceEvents": [
            *_named(trace),
            *map(_slice, trace.slices),
            *(event for number, each in enumerate(trace.arrows) for event in _arrow(each, number)),
            *map(_counter, trace.counters),
        ],
    }


def _named(trace: Trace) -> Iterator[dict[str, Any]]:
    for core, title in trace.cores.items():
        yield _meta(core, 0, "process_name", {"name": title})
        yield _meta(core, 0, "process_sort_index", {"sort_index": core})
    for each in trace.tracks:
        yield _meta(each.core, each.number, "thread_name", {"name": each.title})
        yield _meta(each.core, each.number, "thread_sort_index", {"sort_index": each.number})


def _meta(core: int, track: int, name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "pid": core, "tid": track, "name": name, "args": args}


def _slice(each: Slice) -> dict[str, Any]:
    return {
        "ph": "X", "pid": each.track.core, "tid": each.track.number, "name": each.name,
        "cat": each.category, "ts": each.start_ns * _US, "dur": each.duration_ns * _US,
        "args": each.details,
    }  # fmt: skip


def _arrow(each: Arrow, number: int) -> Iterator[dict[str, Any]]:
    common = {"name": "signal", "cat": "semaphore", "id": number}
    before = each.cause.start_ns + max(0.0, each.cause.duration_ns - _BEFORE_END_NS)
    yield {**common, "ph": "s", **_at(each.cause, before)}
    yield {**common, "ph": "f", "bp": "e", **_at(each.effect, each.effect.start_ns)}


def _at(each: Slice, ns: float) -> dict[str, Any]:
    return {"pid": each.track.core, "tid": each.track.number, "ts": ns * _US}


def _counter(each: Counter) -> dict[str, Any]:
    return {
        "ph": "C", "pid": each.core, "name": each.name, "ts": each.at_ns * _US,
        "args": {"bytes": each.nbytes},
    }  # fmt: skip
