"""The trace in Perfetto's own format: a stream of packets in protobuf.

A core is a track; its rows and counters are tracks within it. A slice is a begin and an end event
on its track, an arrow a flow from one slice to another. Times are in ns. Source: perfetto.dev/docs,
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
"""All packets are one sequence, since there is one writer."""

_UUID, _NAME, _PARENT, _COUNTER, _ORDERING, _RANK = 1, 2, 5, 8, 11, 12
"""Fields of a track's descriptor."""
_EXPLICIT = 3
"""Child tracks are ordered by rank."""
_UNIT, _BYTES = 3, 3
"""The unit field of a counter's descriptor, and the value for bytes."""

_ANNOTATION, _TYPE, _TRACK, _CATEGORY, _EVENT_NAME, _VALUE = 4, 9, 11, 22, 23, 44
_FLOW, _END_OF_FLOW = 47, 48
"""Fields of a track's event."""
_BEGIN, _END, _COUNT = 1, 2, 4
"""Types of events."""

_KEY, _INTEGER, _FLOAT, _TEXT, _ENTRIES = 10, 4, 5, 6, 11
"""Fields of an annotation: its name, and its value by type."""


def encoded(trace: Trace) -> bytes:
    """The contents of trace.pftrace."""
    tracks = _Tracks(trace)
    events = sorted((*_slices(trace, tracks), *_counters(trace, tracks)), key=lambda pair: pair[0])
    return b"".join(
        (*map(_packet, tracks.descriptors), *(_packet(_event(*event)) for event in events))
    )


def _packet(content: bytes) -> bytes:
    return message(_PACKET, content + number(_SEQUENCE_ID, _SEQUENCE))


def _event(timestamp: int, content: bytes) -> bytes:
    return number(_TIMESTAMP, timestamp) + message(_TRACK_EVENT, content)


class _Tracks:
    """The descriptors and identifiers of all tracks."""

    def __init__(self, trace: Trace) -> None:
        self.descriptors: list[bytes] = []
        self._ids: dict[Track | tuple[int, str] | int, int] = {}
        for core, title in trace.cores.items():
            self._add(core, title, number(_ORDERING, _EXPLICIT) + number(_RANK, core))
        for track in trace.tracks:
            self._add(track, track.title, self._within(track.core) + number(_RANK, track.number))
        counters = dict.fromkeys((counter.core, counter.name) for counter in trace.counters)
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
    """Pairs of a time and an encoded event, in order within each track."""
    flows = _flows(trace)
    reached: dict[Track, int] = {}
    for slice_ in sorted(trace.slices, key=lambda slice_: slice_.start_ns):
        begin = max(round(slice_.start_ns), reached.get(slice_.track, 0))
        end = reached[slice_.track] = max(round(slice_.end_ns), begin)
        track = number(_TRACK, tracks[slice_.track])
        content = (
            number(_TYPE, _BEGIN) + track
            + message(_CATEGORY, slice_.category.encode())
            + message(_EVENT_NAME, slice_.name.encode())
            + b"".join(message(_ANNOTATION, _annotation(*pair)) for pair in slice_.details.items())
            + flows.get(id(slice_), b"")
        )  # fmt: skip
        yield begin, content
        yield end, number(_TYPE, _END) + track


def _flows(trace: Trace) -> Mapping[int, bytes]:
    """Id of a slice -> the encoded flows that leave or reach it."""
    fields: dict[int, bytes] = {}

    def add(slice_: Slice, field: int, flow: int) -> None:
        fields[id(slice_)] = fields.get(id(slice_), b"") + fixed64(field, flow)

    for flow, arrow in enumerate(trace.arrows, 1):
        add(arrow.cause, _FLOW, flow)
        add(arrow.effect, _END_OF_FLOW, flow)
    return fields


def _counters(trace: Trace, tracks: _Tracks) -> Iterator[tuple[int, bytes]]:
    for counter in trace.counters:
        yield round(counter.at_ns), _count(counter, tracks[counter.core, counter.name])


def _count(counter: Counter, track: int) -> bytes:
    return number(_TYPE, _COUNT) + number(_TRACK, track) + double(_VALUE, counter.nbytes)


def _annotation(name: str, value: Any) -> bytes:
    """A detail of a slice: a string, a number, or a mapping of further details."""
    key = message(_KEY, name.encode())
    if isinstance(value, Mapping):
        return key + b"".join(message(_ENTRIES, _annotation(*pair)) for pair in value.items())
    if isinstance(value, str):
        return key + message(_TEXT, value.encode())
    return key + (number(_INTEGER, value) if isinstance(value, int) else double(_FLOAT, value))
