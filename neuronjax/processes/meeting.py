"""Meetings of the replicas of one process for a collective: the last to come does it for all."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from neuronjax.processes.collective import Collective, Operands, Outputs
from neuronjax.processes.deadlock import Tag
from neuronjax.processes.links import Links

_RUNS_KEPT = 256
"""Runs whose counts are kept; far more than can be in flight."""
_LOOK_SECONDS = 1.0
"""How often who waits looks whether the processes still work together."""


@dataclass
class _Channel:
    """Messages of one collective of one run."""

    links: Links
    tag: Tag
    owners: Sequence[int]

    @property
    def index(self) -> int:
        return self.links.index

    def process_of(self, rank: int) -> int:
        return self.owners[rank]

    def send(self, process: int, label: int, arrays: Sequence[np.ndarray]) -> None:
        self.links.send(process, self._tag_of(label), arrays)

    def receive(self, process: int, label: int, like: Sequence[np.ndarray]) -> list[np.ndarray]:
        return self.links.receive(process, self._tag_of(label), like)

    def _tag_of(self, label: int) -> Tag:
        return self.tag._replace(part=(*self.tag.part, label))


@dataclass
class _Meeting:
    """The replicas of one group in this process, at one collective."""

    awaited: int
    operands: dict[int, Sequence[np.ndarray]] = field(default_factory=dict)
    outputs: Outputs = field(default_factory=dict)
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)


class Meetings:
    """The collectives of one loaded program.

    Args:
      name: the program's, equal on all processes and no other program's.
      collectives: those of the program, in its order.
      owners: the process of each global rank.
    """

    def __init__(
        self, name: str, collectives: Sequence[Collective], owners: Sequence[int], links: Links
    ) -> None:
        self._name = name
        self._collectives = collectives
        self._owners = owners
        self._links = links
        self._ranks = [rank for rank, owner in enumerate(owners) if owner == links.index]
        self._meetings: dict[Tag, _Meeting] = {}
        self._visits: OrderedDict[int, defaultdict[tuple[int, int], int]] = OrderedDict()
        self._lock = threading.Lock()
        self._groups = [
            {rank: group for group in collective.groups for rank in group}
            for collective in collectives
        ]

    def callbacks(self) -> list[Callable[..., tuple[np.ndarray, ...]]]:
        """A function for each collective.

        It takes the operands, the number of the replica within this process and the number of the
        run; it returns the results and the number of the run.
        """
        return [self._callback(number) for number in range(len(self._collectives))]

    def _callback(self, number: int) -> Callable[..., tuple[np.ndarray, ...]]:
        def run(*arguments: np.ndarray) -> tuple[np.ndarray, ...]:
            *operands, replica, count = map(np.asarray, arguments)
            results = self._attend(number, self._ranks[int(replica)], int(count), operands)
            return (*results, count)

        return run

    def _attend(
        self, number: int, rank: int, run: int, operands: list[np.ndarray]
    ) -> list[np.ndarray]:
        collective, group = self._collectives[number], self._groups[number][rank]
        with self._lock:
            visit = self._visit(run, number, rank)
            tag = Tag(self._name, run, f"{collective.kind} {number}", (visit, group[0]))
            meeting = self._meetings.get(tag)
            if meeting is None:
                members = sum(self._owners[other] == self._links.index for other in group)
                meeting = self._meetings[tag] = _Meeting(members)
            meeting.operands[rank] = operands
            is_last = len(meeting.operands) == meeting.awaited
            if is_last:
                del self._meetings[tag]
        if is_last:
            self._do(collective, group, meeting, tag)
        while not meeting.done.wait(_LOOK_SECONDS):
            self._links.check()
        if meeting.error is not None:
            raise meeting.error
        return meeting.outputs[rank]

    def _visit(self, run: int, number: int, rank: int) -> int:
        """How often a rank was at a collective before, in one run; it may be inside a loop."""
        counts = self._visits.get(run)
        if counts is None:
            counts = self._visits[run] = defaultdict(int)
            if len(self._visits) > _RUNS_KEPT:
                self._visits.popitem(last=False)
        counts[number, rank] += 1
        return counts[number, rank] - 1

    def _do(
        self,
        collective: Collective,
        group: tuple[int, ...],
        meeting: _Meeting,
        tag: Tag,
    ) -> None:
        try:
            self._links.check()
            operands: Operands = {
                rank: meeting.operands[rank] for rank in group if rank in meeting.operands
            }
            channel = _Channel(self._links, tag, self._owners)
            meeting.outputs = collective.run(group, operands, channel)
        except BaseException as error:
            meeting.error = error
        finally:
            meeting.done.set()
