"""How many runs on several cores may be enqueued and not have ended.

XLA:CPU lets 32 runs of a device be in flight. Further ones wait on the threads that all runs need,
and a collective needs a thread for each of its devices: beyond 32, nothing goes on any more.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import Any

MOST_RUNS = 8
"""Of one thread: a host callback enqueues on its own, while the run that called it goes on."""


class InFlight(threading.local):
    """The runs that a thread has enqueued, the oldest first."""

    def __init__(self) -> None:
        self._tokens: deque[Any] = deque()

    def add(self, token: Any) -> None:
        """Takes note of a run, and waits for another one if there are too many."""
        self._tokens.append(token)
        if len(self._tokens) > MOST_RUNS:
            with contextlib.suppress(Exception):  # who waits for its results is told
                self._tokens.popleft().block_until_ready()
