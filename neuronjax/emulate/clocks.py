"""Vector clocks: what an event has seen of every stream (Mattern, "Virtual time and global states
of distributed systems", 1988)."""

from __future__ import annotations

import numpy as np

from neuronjax.emulate.window import Array

_ROOM = 64
"""Streams for which a clock has room at first, and by which it grows."""


class Clock:
    """The last event of every stream, by its number, that has been seen, or 0."""

    __slots__ = ("_last",)

    def __init__(self, last: Array | None = None) -> None:
        self._last = np.zeros(_ROOM, np.int64) if last is None else last

    def copy(self) -> Clock:
        """Another clock that has seen the same."""
        return Clock(self._last.copy())

    def join(self, other: Clock) -> None:
        """Sees all that `other` has seen."""
        others = other._last
        self._reserve(len(others))
        own = self._last[: len(others)]
        np.maximum(own, others, out=own)

    def see(self, stream: int, event: int) -> None:
        """Sees an event, and so all before it in its stream."""
        self._reserve(stream + 1)
        if event > self._last[stream]:
            self._last[stream] = event

    def last(self, stream: int) -> int:
        """The last event of a stream that has been seen."""
        return int(self._last[stream]) if stream < len(self._last) else 0

    def since(self, barrier: int, streams: int) -> Array:
        """The last events seen of so many streams or more, where all have seen `barrier`."""
        self._reserve(streams)
        return np.maximum(self._last, barrier)

    def _reserve(self, streams: int) -> None:
        if streams > len(self._last):
            last = np.zeros(-(-streams // _ROOM) * _ROOM, np.int64)
            last[: len(self._last)] = self._last
            self._last = last
