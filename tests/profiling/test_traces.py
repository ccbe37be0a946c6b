"""The trace in its three formats, each read by a reader of somebody else."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from jax.profiler import ProfileData
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    CounterDescriptor,
    Trace,
    TrackDescriptor,
    TrackEvent,
)

from neuronjax.profiling import chrome, events, perfetto, xspace
from tests.profiling import recorded

Slices = Counter[tuple[str, str, str, int, int]]
"""How often there is a slice of (core, track, name, start, end), in ns."""

MEMORIES = {"HBM tensors", "HBM scratch", "SBUF per partition", "PSUM per partition"}


@pytest.fixture(scope="module")
def shown() -> events.Trace:
    return events.trace(recorded.profile())


@pytest.fixture(scope="module")
def packets(shown: events.Trace) -> Trace:
    found = Trace()
    assert found.ParseFromString(perfetto.encoded(shown)) > 0
    return found


def of_perfetto(packets: Trace) -> Slices:
    """Slices by Perfetto's rule: an end closes the last beginning on its track."""
    named = {each.track_descriptor.uuid: each.track_descriptor for each in packets.packet
             if each.HasField("track_descriptor")}  # fmt: skip
    open_slices: dict[int, list[tuple[str, int]]] = {}
    found: Slices = Counter()
    for packet in packets.packet:
        event = packet.track_event
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            begun = open_slices.setdefault(event.track_uuid, [])
            assert begun == []  # none within another
            begun.append((event.name, packet.timestamp))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            name, start = open_slices[event.track_uuid].pop()
            track = named[event.track_uuid]
            found[named[track.parent_uuid].name, track.name, name, start, packet.timestamp] += 1
    assert not any(open_slices.values())
    return found


def of_chrome(document: dict) -> Slices:
    names = {(each["pid"], each["tid"], each["name"]): each["args"].get("name")
             for each in document["traceEvents"] if each["ph"] == "M"}  # fmt: skip
    return Counter(
        (
            names[each["pid"], 0, "process_name"],
            names[each["pid"], each["tid"], "thread_name"],
            each["name"],
            round(each["ts"] * 1e3),
            round((each["ts"] + each["dur"]) * 1e3),
        )
        for each in document["traceEvents"]
        if each["ph"] == "X"
    )


def near(found: Slices, expected: Slices, most: int = 1) -> bool:
    """Whether they are the same but for so many ns of rounding."""
    rows = zip(sorted(found.elements()), sorted(expected.elements()), strict=True)
    return all(
        one[:3] == other[:3] and abs(one[3] - other[3]) <= most and abs(one[4] - other[4]) <= most
        for one, other in rows
    )


def test_perfetto_and_chrome_show_the_same_slices(shown: events.Trace, packets: Trace) -> None:
    found = of_perfetto(packets)
    assert sum(found.values()) == len(shown.slices)
    assert near(found, of_chrome(json.loads(json.dumps(chrome.document(shown)))))


def test_slices_of_perfetto_have_details(shown: events.Trace, packets: Trace) -> None:
    kernel = next(each for each in shown.slices if each.category == "kernels" and each.details)
    event = next(
        each.track_event for each in packets.packet if each.track_event.name == kernel.name
    )
    found = {each.name: each for each in event.debug_annotations}
    assert list(found) == list(kernel.details)
    assert found["source"].string_value == kernel.details["source"]
    assert found["runs"].int_value == kernel.details["runs"]
    busy = {each.name: each.double_value for each in found["busy %"].dict_entries}
    assert busy == kernel.details["busy %"]
    assert list(event.categories) == ["kernels"]


def test_flows_of_perfetto_join_a_signal_and_who_waited(
    shown: events.Trace, packets: Trace
) -> None:
    begun = [
        each for each in packets.packet if each.track_event.type == TrackEvent.TYPE_SLICE_BEGIN
    ]
    left = {flow: each for each in begun for flow in each.track_event.flow_ids}
    reached = {flow: each for each in begun for flow in each.track_event.terminating_flow_ids}
    assert left.keys() == reached.keys()
    assert len(left) == len(shown.arrows) > 0
    for flow, arrow in enumerate(shown.arrows, 1):
        assert left[flow].track_event.name == arrow.cause.name
        assert reached[flow].track_event.name == arrow.effect.name
        assert left[flow].timestamp <= reached[flow].timestamp


def test_counters_of_perfetto(shown: events.Trace, packets: Trace) -> None:
    tracks = {
        each.track_descriptor.uuid: each.track_descriptor
        for each in packets.packet
        if each.track_descriptor.HasField("counter")
    }
    assert {each.name for each in tracks.values()} == MEMORIES
    assert {each.counter.unit for each in tracks.values()} == {CounterDescriptor.UNIT_SIZE_BYTES}
    found = Counter(
        (tracks[each.track_event.track_uuid].name, each.track_event.double_counter_value)
        for each in packets.packet
        if each.track_event.type == TrackEvent.TYPE_COUNTER
    )
    assert found == Counter((each.name, each.nbytes) for each in shown.counters)


def test_tracks_of_perfetto_are_in_order(shown: events.Trace, packets: Trace) -> None:
    tracks = [each.track_descriptor for each in packets.packet
              if each.HasField("track_descriptor")]  # fmt: skip
    assert len({each.uuid for each in tracks}) == len(tracks)
    cores = [each for each in tracks if not each.parent_uuid]
    assert [each.name for each in cores] == list(shown.cores.values())
    for each in cores:
        assert each.child_ordering == TrackDescriptor.EXPLICIT
        lanes = [one for one in tracks if one.parent_uuid == each.uuid]
        first = min((one for one in lanes if not one.HasField("counter")),
                    key=lambda one: one.sibling_order_rank)  # fmt: skip
        assert first.name == ("compilation" if each.name.startswith("Host") else "programs")


def test_packets_are_one_sequence_in_time(packets: Trace) -> None:
    assert {each.trusted_packet_sequence_id for each in packets.packet} == {1}
    times = [each.timestamp for each in packets.packet if each.HasField("track_event")]
    assert times == sorted(times)


def test_planes_are_what_jax_reads(shown: events.Trace) -> None:
    start = 10**9
    data = ProfileData.from_serialized_xspace(xspace.encoded(shown, start))
    found: Slices = Counter()
    for plane in data.planes:
        for line in plane.lines:
            for event in line.events:
                core = plane.name.removeprefix(xspace.PREFIX)
                begin = round(event.start_ns - start)
                found[core, line.name, event.name, begin, begin + round(event.duration_ns)] += 1
    assert near(found, of_chrome(chrome.document(shown)), 2)


def test_events_of_planes_have_details(shown: events.Trace) -> None:
    data = ProfileData.from_serialized_xspace(xspace.encoded(shown, 0))
    kernel = next(each for each in shown.slices if each.category == "kernels" and each.details)
    found = next(
        event
        for plane in data.planes
        for line in plane.lines
        for event in line.events
        if event.name == kernel.name
    )
    stats = dict(found.stats)
    assert stats.keys() == kernel.details.keys()
    assert stats["source"] == kernel.details["source"]
    assert stats["hbm_bytes"] == kernel.details["hbm_bytes"]
    assert found.duration_ns == pytest.approx(kernel.duration_ns, abs=1)
