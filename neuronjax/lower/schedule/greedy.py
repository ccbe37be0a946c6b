"""A list of nodes in another order: whatever can begin first, comes first.

Every engine takes, of the nodes that are ready when it is free, the most urgent one. Tiles of PSUM
get their banks on the way: a node that fills one waits for banks that nobody wants any more.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from neuronjax.lower.schedule.clocks import Job, Line, Timer
from neuronjax.lower.schedule.precedence import Before


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile: banks of PSUM or bytes of SBUF that it takes, and the nodes that use it.

    `first` is its first bank; None: any.
    """

    name: str
    banks: int
    nbytes: int
    nodes: tuple[int, ...]
    first: int | None = None


@dataclass(frozen=True, slots=True)
class Room:
    """Banks of PSUM, and bytes of each partition of SBUF, that tiles may have at a time.

    `rings` are the queues that transfers may choose from.
    """

    banks: int
    nbytes: int
    rings: int


@dataclass(slots=True)
class Plan:
    """An order of nodes, the first bank of every tile in PSUM, and the queues of transfers."""

    order: list[int]
    banks: dict[str, int]
    queues: dict[int, int]


@dataclass(slots=True)
class _Held:
    """A tile in the order of first uses, how many nodes will still use it, the end of others."""

    tile: Tile
    number: int
    left: int
    is_open: bool = False
    end: float = 0.0


@dataclass(slots=True)
class _Line:
    """Nodes of an engine that are ready by some time, and those that are ready now."""

    later: list[tuple[float, int]] = field(default_factory=list)
    now: list[tuple[float, int]] = field(default_factory=list)


class Planner:
    """Finds the order that urgency gives, higher first.

    If `in_order`, tiles get room in the order of the list, which keeps nodes from holding room that
    others wait for if the list itself does not.
    """

    def __init__(
        self,
        timer: Timer,
        jobs: Sequence[Job],
        before: Before,
        tiles: Sequence[Tile],
        room: Room,
        urgency: Sequence[float],
        *,
        in_order: bool,
    ) -> None:
        self.timer, self.jobs, self.urgency, self.in_order = timer, list(jobs), urgency, in_order
        self.rings = room.rings
        self.after: list[list[tuple[int, bool]]] = [[] for _ in jobs]
        self.missing = [len(ties) for ties in before]
        for node, earlier in enumerate(before):
            for other, reads in earlier.items():
                self.after[other].append((node, reads))
        self.ready = [0.0] * len(jobs)
        self.clocks = timer.clocks()
        self.lines: dict[Line, _Line] = {}
        self.used: dict[int, list[_Held]] = {}
        for number, tile in enumerate(sorted(tiles, key=lambda tile: tile.nodes[0])):
            held = _Held(tile, number, len(tile.nodes))
            for node in tile.nodes:
                self.used.setdefault(node, []).append(held)
        #: How many tiles have been opened.
        self.count = 0
        self.blocked: list[int] = []
        self.free_at: list[float | None] = [0.0] * room.banks
        self.left = room.nbytes
        self.place: dict[str, int] = {}

    def run(self) -> Plan | None:
        """The order; None: tiles hold room that others wait for."""
        order: list[int] = []
        queues: dict[int, int] = {}
        for node, count in enumerate(self.missing):
            if not count:
                self.offer(node)
        while (runnable := self.next()) is not None:
            node, start = runnable
            order.append(node)
            job = self.jobs[node]
            if job.queue is not None:
                queues[node] = self.clocks.idlest(job.queue, self.rings)
                job = self.jobs[node] = job._replace(queue=queues[node])
            self.finish(node, self.clocks.run(job, start))
        return Plan(order, self.place, queues) if len(order) == len(self.jobs) else None

    def offer(self, node: int) -> None:
        """A node that waits for no other one."""
        line = self.lines.setdefault(self.jobs[node].line, _Line())
        heapq.heappush(line.later, (self.ready[node], node))

    def next(self) -> tuple[int, float] | None:
        """The node that can begin first, and when."""
        while (runnable := self.soonest()) is not None:
            node, start = runnable
            closed = [held for held in self.used.get(node, ()) if not held.is_open]
            if not closed or (self.open(node, closed) and self.ready[node] <= start):
                return runnable
            if closed[0].is_open:
                self.offer(node)
            else:
                self.blocked.append(node)
        return None

    def soonest(self) -> tuple[int, float] | None:
        """The node that could begin first if it waits for no bank, and when."""
        best: tuple[float, _Line] | None = None
        for name, line in self.lines.items():
            free = self.clocks.lines.get(name, 0.0)
            self.admit(line, free)
            if line.now or line.later:
                start = free if line.now else line.later[0][0]
                if best is None or start < best[0]:
                    best = (start, line)
        if best is None:
            return None
        start, line = best
        self.admit(line, start)
        return heapq.heappop(line.now)[1], start

    def admit(self, line: _Line, time: float) -> None:
        """What is ready by some time competes from then on."""
        while line.later and line.later[0][0] <= time:
            _, node = heapq.heappop(line.later)
            heapq.heappush(line.now, (-self.urgency[node], node))

    def finish(self, node: int, done: float) -> None:
        """What a node that is planned sets free."""
        job, is_freed = self.jobs[node], False
        for held in self.used.get(node, ()):
            held.left -= 1
            held.end = max(held.end, done)
            if not held.left:
                is_freed = True
                self.left += held.tile.nbytes
                at = self.place.get(held.tile.name, 0)
                for bank in range(at, at + held.tile.banks):
                    self.free_at[bank] = held.end + self.timer.prices.wake_ns
        for other, reads in self.after[node]:
            time = self.timer.ready(job, self.jobs[other], done, reads)
            self.ready[other] = max(self.ready[other], time)
            self.missing[other] -= 1
            if not self.missing[other]:
                self.offer(other)
        if is_freed:
            self.retry()

    def retry(self) -> None:
        """Nodes that waited for banks may ask again."""
        blocked, self.blocked = self.blocked, []
        for node in blocked:
            self.offer(node)

    def open(self, node: int, closed: Sequence[_Held]) -> bool:
        """Gives room to tiles that a node is the first to use; False: not yet."""
        needed = sum(held.tile.nbytes for held in closed)
        last = max(held.number for held in closed)
        if needed > self.left or (self.in_order and last >= self.count + len(closed)):
            return False
        free_at, ready = list(self.free_at), self.ready[node]
        banks: dict[str, int] = {}
        for held in closed:
            at = _oldest(free_at, held.tile)
            if at is None:
                return False
            if held.tile.banks:
                banks[held.tile.name] = at
            for bank in range(at, at + held.tile.banks):
                ready = max(ready, free_at[bank] or 0.0)
                free_at[bank] = None
        self.free_at, self.ready[node] = free_at, ready
        self.place.update(banks)
        self.left -= needed
        self.count += len(closed)
        for held in closed:
            held.is_open = True
        if self.in_order:
            self.retry()
        return True


def _oldest(free_at: Sequence[float | None], tile: Tile) -> int | None:
    """The first of enough neighbouring banks that are free for the longest time; None: nowhere."""
    if not tile.banks:
        return 0
    best: tuple[float, int] | None = None
    places = range(len(free_at) - tile.banks + 1) if tile.first is None else (tile.first,)
    for at in places:
        times = [time for time in free_at[at : at + tile.banks] if time is not None]
        if len(times) == tile.banks and (best is None or max(times) < best[0]):
            best = (max(times), at)
    return None if best is None else best[1]


def ages(timer: Timer, jobs: Sequence[Job], before: Before) -> list[float]:
    """Urgency by place in the list: what comes first is most urgent."""
    return [-float(index) for index in range(len(jobs))]


def paths(timer: Timer, jobs: Sequence[Job], before: Before) -> list[float]:
    """Urgency by the time from the beginning of a node to the end of all that waits for it."""
    urgency = [0.0] * len(jobs)
    for node in range(len(jobs) - 1, -1, -1):
        job = jobs[node]
        own = timer.clocks().run(job, 0.0)
        urgency[node] += own
        for other, reads in before[node].items():
            gap = timer.ready(jobs[other], job, 0.0, reads)
            urgency[other] = max(urgency[other], urgency[node] + max(gap, 0.0))
    return urgency
