"""What each view of a recording draws of one run of a program, read back from its output."""

from __future__ import annotations

import html
import itertools
import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from jax.profiler import ProfileData
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from neuronjax.profiling import chrome, events, page, perfetto, tables, xspace
from neuronjax.profiling.records import Profile
from tests.browser import BROWSER

MEMORIES = {"HBM scratch": "hbm", "SBUF per partition": "sbuf", "PSUM per partition": "psum"}

Slice = tuple[str, str, float, float]
"""Lane, name, start and end in ns."""


@dataclass
class Drawn:
    """One run as a view shows it."""

    #: With the row as the lane; what the runtime does before and after kernels is among them.
    kernels: list[Slice] = field(default_factory=list)
    #: By the name of the kernel that the view says they belong to.
    instructions: dict[str, list[Slice]] = field(default_factory=lambda: defaultdict(list))
    #: By memory: times, and bytes of scratch from then on.
    levels: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    #: Start, end, address and bytes of scratch tensors, by memory.
    tensors: dict[str, list[tuple[float, float, int, int]]] = field(default_factory=dict)

    def add(self, lane: str, name: str, start: float, end: float, kernel: str | None) -> None:
        """A slice of a trace, where instructions name their kernel."""
        if kernel is not None:
            self.instructions[kernel].append((lane, name, start, end))
        elif "kernels" in lane:
            self.kernels.append((lane, name, start, end))


def of_chrome(profile: Profile) -> Drawn:
    found = Drawn()
    document = json.loads(json.dumps(chrome.document(events.trace(profile))))["traceEvents"]
    titles = {
        (each["pid"], each["tid"]): each["args"]["name"]
        for each in document
        if each["name"] == "thread_name"
    }
    for each in document:
        if each["ph"] == "X":
            title, start = titles[each["pid"], each["tid"]], 1e3 * each["ts"]
            kernel = each["args"].get("kernel")
            found.add(title, each["name"], start, start + 1e3 * each["dur"], kernel)
        elif each["ph"] == "C" and each["name"] in MEMORIES:
            levels = found.levels.setdefault(MEMORIES[each["name"]], [])
            levels.append((1e3 * each["ts"], each["args"]["bytes"]))
    return found


def of_perfetto(profile: Profile) -> Drawn:
    packets, found = Trace(), Drawn()
    packets.ParseFromString(perfetto.encoded(events.trace(profile)))
    titles: dict[int, str] = {}
    begun: dict[int, tuple[str, str | None, int]] = {}
    for packet in packets.packet:
        event = packet.track_event
        if packet.HasField("track_descriptor"):
            titles[packet.track_descriptor.uuid] = packet.track_descriptor.name
        elif event.type == TrackEvent.TYPE_SLICE_BEGIN:
            details = {each.name: each.string_value for each in event.debug_annotations}
            begun[event.track_uuid] = event.name, details.get("kernel"), packet.timestamp
        elif event.type == TrackEvent.TYPE_SLICE_END:
            name, kernel, start = begun.pop(event.track_uuid)
            found.add(titles[event.track_uuid], name, start, packet.timestamp, kernel)
        elif titles[event.track_uuid] in MEMORIES:
            levels = found.levels.setdefault(MEMORIES[titles[event.track_uuid]], [])
            levels.append((packet.timestamp, int(event.double_counter_value)))
    return found


def of_planes(profile: Profile) -> Drawn:
    found = Drawn()
    data = ProfileData.from_serialized_xspace(xspace.encoded(events.trace(profile), 0))
    for plane in data.planes:
        for line in plane.lines:
            for event in line.events:
                end = event.start_ns + event.duration_ns
                kernel = dict(event.stats).get("kernel")
                found.add(line.name, event.name, event.start_ns, end, kernel)
    return found


def of_tables(profile: Profile) -> Drawn:
    """The tables have a row for all runs of a kernel, and none for what the runtime does."""
    found = Drawn()
    for row in tables.rows(profile, "HloInstruction"):
        found.kernels.append((row["path"], row["hlo_name"], row["start_ts"], row["end_ts"]))
    for row in tables.rows(profile, "Instruction"):
        start = row["timestamp"]
        own = (row["engine"], row["opcode"], start, start + row["duration"])
        found.instructions[row["hlo_name"]].append(own)
    hbm = [(row["timestamp"], row["scratchpad_bytes"]) for row in tables.rows(profile, "HbmUsage")]
    found.levels["hbm"] = hbm
    return found


_SCRIPT = """<script>
const seen = data.programs.map((program) => {
  const { items } = new Timeline(program), of = (each) => [each.lane, each.name, each.start, each.end];
  const map = (memory) => heldIn(program, memory).filter((each) => !each.always).map((each) => [from(each), until(each, program), each.address, each.nbytes]);
  return {
    kernels: items.filter((each) => each.full).map(of), levels: program.levels,
    instructions: items.filter((each) => each.span).map((each) => [each.kernel.name, of(each)]),
    tensors: Object.fromEntries(["hbm", "sbuf", "psum"].map((memory) => [memory, map(memory)])),
  };
});
document.body.dataset.drawn = JSON.stringify(seen);
</script></body>"""  # noqa: E501


def of_page(profile: Profile, folder: Path) -> list[Drawn]:
    """What the page's own code draws of each program, in the order of the page."""
    path = folder / "drawn.html"
    path.write_text(page.report(profile).replace("</body>", _SCRIPT))
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/user",
         "--virtual-time-budget=4000", "--dump-dom", f"file://{path}"],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    given = re.search(r'data-drawn="(.*?)"', done.stdout)
    assert given is not None
    return list(map(_of_page, json.loads(html.unescape(given[1]))))


def _of_page(given: dict) -> Drawn:
    found = Drawn(kernels=list(map(tuple, given["kernels"])), tensors=given["tensors"])
    for kernel, own in given["instructions"]:
        found.instructions[kernel].append(tuple(own))
    found.levels = {name: [(0.0, 0), *map(tuple, own)] for name, own in given["levels"].items()}
    return found


def overlaps(slices: list[Slice]) -> Iterator[tuple[Slice, Slice]]:
    """Neighbours on one lane, the second of which begins before the first has ended."""
    lanes: dict[str, list[Slice]] = defaultdict(list)
    for each in slices:
        lanes[each[0]].append(each)
    for lane in lanes.values():
        lane.sort(key=lambda each: each[2:])
        yield from (pair for pair in itertools.pairwise(lane) if pair[1][2] < pair[0][3] - 1)


def covered(tensors: list[tuple[float, float, int, int]], at: float) -> int:
    """Bytes of addresses that tensors take at a time."""
    reached = total = 0
    for first, last in sorted((a, a + n) for start, end, a, n in tensors if start <= at < end):
        total += max(0, last - max(first, reached))
        reached = max(reached, last)
    return total


TRACES: dict[str, Callable[[Profile], Drawn]] = {
    "trace.json": of_chrome,
    "trace.pftrace": of_perfetto,
    "planes": of_planes,
    "tables": of_tables,
}
"""The views that need no browser."""
