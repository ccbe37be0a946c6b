"""Sequences without a place in the batch, in order of priority, of their clients' turns and of
arrival.

Clients take turns by start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996): a sequence's turn
is the virtual time at which it would begin if its client had a device of its own, where every token
takes a unit of time, and virtual time is the turn of the sequence that was taken last. However many
sequences a client queues, one of another client goes before all but the first of them.
"""

import heapq

from launch.serving.scheduler.sequences import Sequence


class Waiting:
    """A queue that any sequence may leave."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, float, int], Sequence]] = []
        self._members: set[int] = set()  # numbers of those that wait
        self._now = 0.0  # virtual time, in tokens
        self._ends: dict[str, float] = {}  # of each client's last sequence, if it is yet to come

    def __len__(self) -> int:
        return len(self._members)

    def enqueue(self, sequence: Sequence) -> None:
        """Adds a new sequence, behind those of its client."""
        begin = max(self._now, self._ends.get(sequence.client, 0.0))
        sequence.turn = begin
        self._ends[sequence.client] = begin + sequence.limit
        self.add(sequence)

    def add(self, sequence: Sequence) -> None:
        """Adds one that has had its turn, or gets it now, at its place."""
        place = (sequence.priority, sequence.turn, sequence.number)
        heapq.heappush(self._heap, (place, sequence))
        self._members.add(sequence.number)

    def first(self) -> Sequence | None:
        """The sequence whose turn is next; None if none waits."""
        while self._heap and self._heap[0][1].number not in self._members:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def remove(self, sequence: Sequence) -> None:
        """Takes one out, wherever it is."""
        self._members.discard(sequence.number)

    def take(self, sequence: Sequence) -> None:
        """Takes one out because it has its turn."""
        self.remove(sequence)
        if sequence.turn > self._now:
            self._now = sequence.turn
            self._ends = {client: end for client, end in self._ends.items() if end > self._now}
