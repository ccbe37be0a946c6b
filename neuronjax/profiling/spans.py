"""A kernel's first instructions and transfers in time, and what they waited for.

The simulation skips the steady part of loops, so only the beginning of a kernel has spans. Of all
signals on the semaphores that a span waits on, the last one before its start released it.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Mapping

from neuronjax.profiling.records import Span
from neuronjax.program.dma import DmaInstruction
from neuronjax.program.instruction import Semaphore
from neuronjax.timing.core import Event
from neuronjax.timing.encoding import PS, Compiled
from neuronjax.timing.platform import Platform
from neuronjax.timing.runs import LANES
from neuronjax.timing.simulate import simulate
from neuronjax.timing.timeline import FirstRun

TENSOR = "tensor"


def spans(first: FirstRun, platform: Platform, most: int) -> tuple[Span, ...]:
    """The first `most` events of a kernel in its first run, in the order of their starts."""
    compiled, events = first.compiled, _events(first, platform, most)
    signals = _signals(compiled, events)
    return tuple(
        Span(
            LANES[event.kind](event.lane),
            compiled.instructions[event.leaf].mnemonic,
            (event.start - first.lead) / PS,
            (event.end - first.lead) / PS,
            _released(compiled, event, signals),
        )
        for event in events
    )


def _events(first: FirstRun, platform: Platform, most: int) -> list[Event]:
    result = simulate(first.compiled, platform, most, first.state, first.completed)
    return sorted(result.events, key=lambda event: (event.start, event.end))


def waits_by_part(
    first: FirstRun, platform: Platform, most: int
) -> dict[tuple[int, str, int], float]:
    """How long engines, and all queues of transfers as one, were idle before the instructions of a
    part of a kernel, in ns, by the part, the resource that they waited for, and the part that this
    worked for."""
    compiled, events = first.compiled, _events(first, platform, most)
    signals = _signals(compiled, events)
    still: dict[tuple[int, str, int], float] = defaultdict(float)
    free: dict[str, int] = {}
    for event in events:
        if event.kind == "engine" and isinstance(compiled.instructions[event.leaf], DmaInstruction):
            continue  # the engine only tells a queue of the transfer
        worker = kind_of(LANES[event.kind](event.lane))
        since = free.get(worker, first.lead)
        free[worker] = max(since, event.end)
        released = _released(compiled, event, signals)
        if event.start > since and released >= 0:
            cause = events[released]
            part, awaited = (compiled.instructions[by.leaf].part or 0 for by in (event, cause))
            resource = kind_of(LANES[cause.kind](cause.lane))
            still[part, resource, awaited] += (event.start - since) / PS
    return dict(still)


def _signals(compiled: Compiled, events: list[Event]) -> dict[Semaphore, list[tuple[int, int]]]:
    """Semaphore -> (end, position) of the events that add to it, sorted."""
    ends: dict[Semaphore, list[tuple[int, int]]] = {}
    for position, event in enumerate(events):
        for signal in compiled.instructions[event.leaf].signals:
            insort(ends.setdefault(signal.semaphore, []), (event.end, position))
    return ends


def _released(
    compiled: Compiled, event: Event, signals: Mapping[Semaphore, list[tuple[int, int]]]
) -> int:
    last = (-1, -1)
    for wait in compiled.instructions[event.leaf].waits:
        known = signals.get(wait.semaphore, [])
        before = bisect_right(known, (event.start, len(known) + event.start))
        if before:
            last = max(last, known[before - 1])
    return last[1]


def waits(spans: tuple[Span, ...], lane: str = TENSOR) -> dict[str, float]:
    """How long an engine was idle before its spans, in ns, by the resource it waited for."""
    still: dict[str, float] = defaultdict(float)
    free = 0.0
    for span in spans:
        if span.lane != lane:
            continue
        if span.start > free and span.after >= 0:
            cause = spans[span.after]
            still[kind_of(cause.lane)] += span.start - free
        free = max(free, span.end)
    return dict(still)


def kind_of(lane: str) -> str:
    """The resource of a lane: an engine, "dma" or "collective"."""
    return {"queue": "dma", "stream": "collective"}.get(lane.split()[0], lane)
