"""The trace in Chrome's JSON, which Perfetto and chrome://tracing open.

A process of the trace is a core, a thread one of its tracks. Times are µs, as the format wants,
and whole ns: Perfetto cuts off the rest, of starts and of durations, and drops what then overlaps.
Source: "Trace Event Format" (Google).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from neuronjax.profiling.events import Arrow, Counter, Slice, Trace

_NS_PER_US = 1000.0
_BEFORE_END_NS = 1
"""Arrows begin this long before their slice ends: at its very end they would lie outside it."""


def document(trace: Trace) -> dict[str, Any]:
    """The contents of trace.json."""
    return {
        "displayTimeUnit": "ns",
        "otherData": {"is_simulation": True, "target": trace.target},
        "traceEvents": [
            *_name_tracks(trace),
            *map(_slice, trace.slices),
            *(
                event
                for number, arrow in enumerate(trace.arrows)
                for event in _arrow(arrow, number)
            ),
            *map(_counter, trace.counters),
        ],
    }


def _name_tracks(trace: Trace) -> Iterator[dict[str, Any]]:
    for core, title in trace.cores.items():
        yield _meta(core, 0, "process_name", {"name": title})
        yield _meta(core, 0, "process_sort_index", {"sort_index": core})
    for track in trace.tracks:
        yield _meta(track.core, track.number, "thread_name", {"name": track.title})
        yield _meta(track.core, track.number, "thread_sort_index", {"sort_index": track.number})


def _meta(core: int, track: int, name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "pid": core, "tid": track, "name": name, "args": args}


def _us(ns: float) -> float:
    """The µs of a time to the next ns, never a hair less, as readers cut off."""
    whole = round(ns)
    us = whole / _NS_PER_US
    return us if int(us * _NS_PER_US) == whole else math.nextafter(us, math.inf)


def _slice(slice_: Slice) -> dict[str, Any]:
    start = round(slice_.start_ns)
    return {
        "ph": "X", "pid": slice_.track.core, "tid": slice_.track.number, "name": slice_.name,
        "cat": slice_.category, "ts": _us(start), "dur": _us(round(slice_.end_ns) - start),
        "args": slice_.details,
    }  # fmt: skip


def _arrow(arrow: Arrow, number: int) -> Iterator[dict[str, Any]]:
    common = {"name": "signal", "cat": "semaphore", "id": number}
    before = max(round(arrow.cause.start_ns), round(arrow.cause.end_ns) - _BEFORE_END_NS)
    yield {**common, "ph": "s", **_at(arrow.cause, before)}
    yield {**common, "ph": "f", "bp": "e", **_at(arrow.effect, arrow.effect.start_ns)}


def _at(slice_: Slice, ns: float) -> dict[str, Any]:
    return {"pid": slice_.track.core, "tid": slice_.track.number, "ts": _us(ns)}


def _counter(counter: Counter) -> dict[str, Any]:
    return {
        "ph": "C", "pid": counter.core, "name": counter.name, "ts": _us(counter.at_ns),
        "args": {"bytes": counter.nbytes},
    }  # fmt: skip
