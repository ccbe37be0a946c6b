"""How runs on several cores are enqueued, and how many of them may not have ended.

XLA:CPU stands still for ever in two cases. A collective needs every device of its run, so
two runs that two threads enqueue at once, on some devices in one order and on some in the other,
wait for each other. And it lets 32 runs of a device be in flight: further ones wait on the threads
that all runs need, and a collective needs a thread for each of its devices.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import Any
from weakref import WeakSet

MOST_RUNS = 28
"""How many runs of all threads may be in flight, which is fewer than XLA allows."""
MOST_RUNS_OF_A_THREAD = 8


class _Runs:
    """The runs that a thread has enqueued, by a token each, the oldest first."""

    def __init__(self) -> None:
        self.tokens: deque[Any] = deque()


class _Own(threading.local):
    """Host callbacks come on threads of their own, so a callback never waits for the run that
    called it."""

    def __init__(self, threads: WeakSet[_Runs]) -> None:
        self.runs = _Runs()
        threads.add(self.runs)


class InFlight:
    """The runs of one client on several cores."""

    def __init__(self) -> None:
        self._threads: WeakSet[_Runs] = WeakSet()
        self._own = _Own(self._threads)
        self.enqueuing = threading.Lock()
        """Held while a run is put on its cores."""

    def add(self, token: Any) -> None:
        """Takes note of a run, and waits for older ones of this thread if there are too many."""
        own = self._own.runs.tokens
        own.append(token)
        share = MOST_RUNS // len(self._threads) - 1
        while len(own) > max(0, min(MOST_RUNS_OF_A_THREAD, share)):
            with contextlib.suppress(Exception):  # who waits for its results is told
                own.popleft().block_until_ready()
