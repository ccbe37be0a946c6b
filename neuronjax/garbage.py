"""Controls how often Python's garbage collector runs.

Tracing and lowering make many small, long-lived records, and so does the emulator when it makes a
program executable. Scanning them again and again collects nothing, and takes a fifth of the time of
lowering and two thirds of the emulator's.
"""

from __future__ import annotations

import gc
import threading
from contextlib import AbstractContextManager

SELDOM = 200_000
"""Number of new objects between collections while they are to be rare."""


class _Patience(AbstractContextManager[None]):
    """Counts the threads inside the context; as all share the collector's thresholds, the last one
    to leave restores them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before: tuple[int, int, int] = gc.get_threshold()

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._before = gc.get_threshold()
                young, *older = self._before
                gc.set_threshold(max(young, SELDOM) if young else 0, *older)
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                gc.set_threshold(*self._before)


seldom_collected = _Patience()
"""A context in which the garbage collector runs less often, in all threads."""
