"""When Python looks for cycles of garbage.

Lowering makes many small records that live on: going through them again and again finds nothing,
and takes a fifth of its time.
"""

from __future__ import annotations

import gc
import threading
from contextlib import AbstractContextManager

SELDOM = 200_000
"""New records after which Python looks for garbage, while somebody asks for patience."""


class _Patience(AbstractContextManager[None]):
    """The thresholds of Python's collector are one for all threads: the last to leave sets them
    back."""

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
"""A context in which garbage is looked for less often, in all threads."""
