"""Settings of the whole process that hold while any thread is in their context."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

SELDOM = 200_000
"""Number of new objects between garbage collections while they are to be rare."""

Restore = Callable[[], None]


class ProcessSetting(AbstractContextManager[None]):
    """The first thread to enter calls ``change``, and the last one to leave what that returned."""

    def __init__(self, change: Callable[[], Restore]) -> None:
        self._change = change
        self._lock = threading.Lock()
        self._users = 0
        self._restore: Restore = lambda: None

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._restore = self._change()
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._restore()


def _collect_seldom() -> Restore:
    young, *older = gc.get_threshold()
    gc.set_threshold(max(young, SELDOM) if young else 0, *older)
    return lambda: gc.set_threshold(young, *older)


seldom_collected = ProcessSetting(_collect_seldom)
"""A context in which the garbage collector runs less often.

Tracing and lowering make many small, long-lived records, and so does the emulator when it makes a
program executable. Scanning them again and again collects nothing, and takes a fifth of the time of
lowering and two thirds of the emulator's.
"""
