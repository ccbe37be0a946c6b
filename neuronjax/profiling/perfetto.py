"""The trace in Perfetto's own format: a stream of packets in protobuf.

A core is a track, its rows and counters are tracks within it. Slices are a beginning and an end on
their track; an arrow is a flow from one slice to another. Times are ns. Source: perfetto.dev/docs,
"Converting arbitrary timestamped data to Perfetto", and the messages that it links to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from neuronjax.profiling.events import Counter, Slice, Trace, Track
from neuronjax.protobuf import double, fixed64, message, number

_PACKET = 1
_TIMESTAMP, _SEQUENCE_ID, _TRACK_EVENT, _TRACK_DESCRIPTOR = 8, 10, 11, 60
_SEQUENCE = 1
"""All packets are one sequence: no two writers."""

_UUID, _NAME, _PARENT, _COUNTER, _ORDERING, _RANK = 1, 2, 5, 8, 11, 12
"""Of a track's descriptor."""
_EXPLICIT = 3
"""Tracks within a track are in the order of their ranks."""
_UNIT, _BYTES = 3, 3
"""Of a counter's descriptor: what it counts."""

_ANNOTATION, _TYPE, _TRACK, _CATEGORY, _EVENT_NAME, _VALUE = 4, 9, 11, 22, 23, 44
_FLOW, _END_OF_FLOW = 47, 48
"""Of a track's event."""
_BEGIN, _END, _COUNT = 1, 2, 4
"""Types of events."""

_KEY, _INTEGER, _FLOAT, _TEXT, _ENTRIES = 10, 4, 5, 6, 11
"""Of an annotation: its name, and its value by type."""


def encoded(trace: Trace) -> bytes:
    """The contents of trace.pftrace."""
    tracks = _Tracks(trace)
    events = sorted((*_slices(trace, tracks), *_counters(trace, tracks)), key=lambda pair: pair[0])
    return b"".join(
        (*map(_packet, tracks.descriptors), *(_packet(_event(*each)) for each in events))
    )


def _packet(content: bytes) -> bytes:
    return message(_PACKET, content + number(_SEQUENCE_ID, _SEQUENCE))


def _event(timestamp: int, content: bytes) -> bytes:
    return number(_TIMESTAMP, timestamp) + message(_TRACK_EVENT, content)


class _Tracks:
    """Descriptors of all tracks, and the identifier of each."""

    def __init__(self, trace: Trace) -> None:
        self.descriptors: list[bytes] = []
        self._ids: dict[Track | tuple[int, str] | int, int] = {}
        for core, title in trace.cores.items():
            self._add(core, title, number(_ORDERING, _EXPLICIT) + number(_RANK, core))
        for each in trace.tracks:
            self._add(each, each.title, self._within(each.core) + number(_RANK, each.number))
        counters = dict.fromkeys((each.core, each.name) for each in trace.counters)
        for core, name in counters:
            unit = message(_COUNTER, number(_UNIT, _BYTES))
            self._add((core, name), name, self._within(core) + unit)

    def __getitem__(self, key: Track | tuple[int, str] | int) -> int:
        return self._ids[key]

    def _within(self, core: int) -> bytes:
        return number(_PARENT, self._ids[core])

    def _add(self, key: Track | tuple[int, str] | int, name: str, more: bytes) -> None:
        self._ids[key] = len(self._ids) + 1
        content = number(_UUID, self._ids[key]) + message(_NAME, name.encode()) + more
        self.descriptors.append(message(_TRACK_DESCRIPTOR, content))


def _slices(trace: Trace, tracks: _Tracks) -> Iterator[tuple[int, bytes]]:
    """Times and events, in order within each track."""
    flows = _flows(trace)
    reached: dict[Track, int] = {}
    for each in sorted(trace.slices, key=lambda one: one.start_ns):
        begin = max(round(each.start_ns), reached.get(each.track, 0))
        end = reached[each.track] = max(round(each.end_ns), begin)
        track = number(_TRACK, tracks[each.track])
        content = (
            number(_TYPE, _BEGIN) + track
            + message(_CATEGORY, each.category.encode())
            + message(_EVENT_NAME, each.name.encode())
            + b"".join(message(_ANNOTATION, _annotation(*pair)) for pair in each.details.items())
            + flows.get(id(each), b"")
        )  # fmt: skip
        yield begin, content
        yield end, number(_TYPE, _END) + track


def _flows(trace: Trace) -> Mapping[int, bytes]:
    """The fields of arrows that leave or reach a slice, by its `id`."""
    found: dict[int, bytes] = {}

    def add(each: Slice, field: int, flow: int) -> None:
        found[id(each)] = found.get(id(each), b"") + fixed64(field, flow)

    for flow, each in enumerate(trace.arrows, 1):
        add(each.cause, _FLOW, flow)
        add(each.effect, _END_OF_FLOW, flow)
    return found


def _counters(trace: Trace, tracks: _Tracks) -> Iterator[tuple[int, bytes]]:
    for each in trace.counters:
        yield round(each.at_ns), _count(each, tracks[each.core, each.name])


def _count(each: Counter, track: int) -> bytes:
    return number(_TYPE, _COUNT) + number(_TRACK, track) + double(_VALUE, each.nbytes)


def _annotation(name: str, value: Any) -> bytes:
    """A detail of a slice: a text, a number, or further details."""
    key = message(_KEY, name.encode())
    if isinstance(value, Mapping):
        return key + b"".join(message(_ENTRIES, _annotation(*pair)) for pair in value.items())
    if isinstance(value, str):
        return key + message(_TEXT, value.encode())
    return key + (number(_INTEGER, value) if isinstance(value, int) else double(_FLOAT, value))
