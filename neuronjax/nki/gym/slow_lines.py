"""The costliest lines of a kernel, and what their instructions wait for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neuronjax.profiling.spans import waits_by_part
from neuronjax.timing.platform import Platform
from neuronjax.timing.timeline import KernelTime, Timeline

MOST_LINES = 8
MOST_EVENTS = 2_000
"""Instructions and transfers from the beginning of a kernel whose waits are looked at."""
_MOST_WAITS = 3


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Idle time of the engine or the transfers of a line before they begin, in the first
    instructions of a kernel, where loops have not yet come to a steady state."""

    #: The engine, "dma" or "collective" that they waited for, and the line that it worked for.
    resource: str
    line: str
    ns: float


@dataclass(frozen=True, kw_only=True)
class SlowLine:
    """A line, and what it adds to the time of a run."""

    #: ``file:line``.
    line: str
    time_ns: float
    waits_for: tuple[Wait, ...]


def slow_lines(timeline: Timeline, platform: Platform) -> tuple[SlowLine, ...]:
    """The lines that add most to a kernel's time, costliest first."""
    times: defaultdict[str, float] = defaultdict(float)
    waits: dict[str, defaultdict[tuple[str, str], float]] = {}
    for kernel in timeline.kernels:
        lines = _lines(kernel)
        for line, part in zip(lines, kernel.parts, strict=True):
            times[line] += part.added_ns * kernel.runs
        idle = waits_by_part(kernel.first_run, platform, MOST_EVENTS)
        for (waiting, resource, awaited), ns in idle.items():
            longest = waits.setdefault(lines[waiting], defaultdict(float))
            longest[resource, lines[awaited]] += ns
    return tuple(
        SlowLine(line=line, time_ns=ns, waits_for=_longest(waits.get(line, {})))
        for line, ns in sorted(times.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_LINES]
        if ns
    )


def _longest(awaited: Mapping[tuple[str, str], float]) -> tuple[Wait, ...]:
    order = sorted(awaited.items(), key=lambda pair: (-pair[1], pair[0]))
    return tuple(
        Wait(resource=resource, line=line, ns=ns)
        for (resource, line), ns in order[:_MOST_WAITS]
        if ns
    )


def _lines(kernel: KernelTime) -> Sequence[str]:
    return [next(iter(part.sources), "") for part in kernel.parts]
