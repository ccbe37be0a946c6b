"""The trace as jax.profiler collects it from devices: an XSpace message.

A core is a plane, each of its tracks a line. The plane's name has the prefix by which XLA and the
TensorBoard profiler recognise devices. The format has no arrows or counters.
Source: ``tsl/profiler/protobuf/xplane.proto``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neuronjax.profiling.events import Slice, Trace, Track
from neuronjax.protobuf import double, message, number

PREFIX = "/device:CUSTOM:"
"""XLA's prefix for planes of devices that it does not know."""

_PS = 1_000
_PLANE, _NAME = 1, 2
"""Field of a space, and of planes, lines and metadata, whose field 1 is an identifier."""
_LINES, _EVENT_NAMES, _STAT_NAMES = 3, 4, 5
"""Fields of a plane; the names are maps from identifiers to metadata."""
_START, _EVENTS, _ORDER = 3, 4, 10
"""Fields of a line; offsets count from its start, in ns since 1970."""
_EVENT, _OFFSET, _DURATION, _STATS = 1, 2, 3, 4
"""Fields of an event: the identifier of its name, and times in ps."""
_FLOAT, _INTEGER, _TEXT = 2, 4, 5
"""Fields of a stat: its value by type."""


def encoded(trace: Trace, start_ns: int) -> bytes:
    """An XSpace of all cores; the recording began at `start_ns` since 1970."""
    lines: dict[Track, list[Slice]] = {track: [] for track in trace.tracks}
    for slice_ in trace.slices:
        lines[slice_.track].append(slice_)
    return b"".join(
        message(
            _PLANE,
            _plane(
                core,
                PREFIX + title,
                {track: slices for track, slices in lines.items() if track.core == core},
                start_ns,
            ),
        )
        for core, title in trace.cores.items()
    )


def _plane(core: int, title: str, lines: Mapping[Track, list[Slice]], start_ns: int) -> bytes:
    events, stats = _Names(), _Names()
    content = number(1, core + 1) + message(_NAME, title.encode())
    for track, slices in sorted(lines.items(), key=lambda pair: pair[0].number):
        line = (
            number(1, track.number + 1) + number(_ORDER, track.number + 1)
            + message(_NAME, track.title.encode()) + number(_START, start_ns)
            + b"".join(message(_EVENTS, _event(slice_, events, stats)) for slice_ in slices)
        )  # fmt: skip
        content += message(_LINES, line)
    return content + events.encoded(_EVENT_NAMES) + stats.encoded(_STAT_NAMES)


class _Names:
    """Identifiers of names, from 1."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __getitem__(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers) + 1)

    def encoded(self, field: int) -> bytes:
        """Entries of a map from identifiers to messages with the identifier and the name."""
        return b"".join(
            message(
                field, number(1, key) + message(2, number(1, key) + message(_NAME, name.encode()))
            )
            for name, key in self._numbers.items()
        )


def _event(slice_: Slice, events: _Names, stats: _Names) -> bytes:
    return (
        number(_EVENT, events[slice_.name])
        + number(_OFFSET, round(slice_.start_ns * _PS))
        + number(_DURATION, round(slice_.duration_ns * _PS))
        + b"".join(
            message(_STATS, number(1, stats[name]) + _value(value))
            for name, value in slice_.details.items()
        )
    )


def _value(value: Any) -> bytes:
    """A string or a number; a mapping of further details becomes one string."""
    if isinstance(value, Mapping):
        value = ", ".join(f"{name} {detail}" for name, detail in value.items())
    if isinstance(value, str):
        return message(_TEXT, value.encode())
    return number(_INTEGER, value) if isinstance(value, int) else double(_FLOAT, value)
