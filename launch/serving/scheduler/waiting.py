"""Sequences without a place in the batch, in order of priority and arrival."""

import heapq

from launch.serving.scheduler.sequences import Sequence


class Waiting:
    """A queue that any sequence may leave."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Sequence]] = []
        self._members: set[int] = set()  # numbers of those that wait

    def __len__(self) -> int:
        return len(self._members)

    def add(self, sequence: Sequence) -> None:
        """Adds one at the place of its rank."""
        heapq.heappush(self._heap, (sequence.rank, sequence))
        self._members.add(sequence.number)

    def first(self) -> Sequence | None:
        """The next one."""
        while self._heap and self._heap[0][1].number not in self._members:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def remove(self, sequence: Sequence) -> None:
        """Takes one out, wherever it is."""
        self._members.discard(sequence.number)

    def pop(self) -> Sequence:
        """Takes the next one out."""
        sequence = heapq.heappop(self._heap)[1]
        self._members.discard(sequence.number)
        return sequence
