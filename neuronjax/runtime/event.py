"""Events that are true: ready when the work is done, with its error if it failed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from neuronjax.runtime.stress import Stress

_MOST_WAITING = 1 << 14
"""Far more than runs can be pending."""

OnReady = Callable[[BaseException | None], None]


class Event:
    """Set once, with an error or without; every ``on_ready`` function runs exactly once, in the
    order in which they came."""

    __slots__ = ("_callbacks", "_done", "_lock", "error")

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._callbacks: list[OnReady] = []
        self._done = False
        self._lock = threading.Lock()

    def is_ready(self) -> bool:
        return self._done

    def set(self, error: BaseException | None = None) -> None:
        """Marks the work as done and runs what waits for it. A second call changes nothing."""
        with self._lock:
            if self._done:
                return
            self.error = error
            self._done = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(error)

    def on_ready(self, callback: OnReady) -> None:
        """Runs ``callback(error)`` when the event is set, at once if it is."""
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        callback(self.error)

    def wait(self) -> BaseException | None:
        """Blocks until the event is set; returns its error."""
        if not self._done:
            done = threading.Lock()
            done.acquire()
            self.on_ready(lambda _: done.release())
            done.acquire()
        return self.error


class Waiters:
    """Threads that wait for work in place of callers who must not.

    One job may wait for another (a host callback may use the platform), so a job must never queue
    behind a busy thread: the pool grows with the jobs that wait, and reuses idle threads. The
    interpreter waits for it before it shuts down; jobs that come later run at once.
    """

    def __init__(self, stress: Stress | None = None) -> None:
        self._pool = ThreadPoolExecutor(_MOST_WAITING, thread_name_prefix="neuronjax-waiter")
        self._stress = stress

    def submit(self, job: Callable[[], None]) -> None:
        """Runs ``job`` on a thread of its own; ``job`` must not raise."""
        try:
            self._pool.submit(job if self._stress is None else self._stress.delayed(job))
        except RuntimeError:  # the interpreter is shutting down
            job()
