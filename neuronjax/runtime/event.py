"""Events that become ready when work is done, with its error if it failed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from neuronjax.runtime.stress import Stress

_MOST_WAITING = 1 << 14
"""Far more than the number of runs that can be pending."""

OnReady = Callable[[BaseException | None], None]


class Event:
    """An event that is set once, with or without an error. Every ``on_ready`` function runs exactly
    once, in the order of registration."""

    __slots__ = ("_callbacks", "_done", "_lock", "error")

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._callbacks: list[OnReady] = []
        self._done = False
        self._lock = threading.Lock()

    def is_ready(self) -> bool:
        return self._done

    def set(self, error: BaseException | None = None) -> None:
        """Marks the work as done and runs the callbacks. A second call has no effect."""
        with self._lock:
            if self._done:
                return
            self.error = error
            self._done = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(error)

    def on_ready(self, callback: OnReady) -> None:
        """Runs ``callback(error)`` when the event is set, or at once if it already is."""
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
    """Threads that wait for work on behalf of callers that must not block.

    One job may wait for another (a host callback may use the platform), so a job must never queue
    behind a busy thread: the pool grows with the number of waiting jobs, and reuses idle threads.
    The interpreter waits for the pool before it shuts down; later jobs run at once.
    """

    def __init__(self, stress: Stress | None = None) -> None:
        self._pool = ThreadPoolExecutor(_MOST_WAITING, thread_name_prefix="neuronjax-waiter")
        self._stress = stress
        self._pending = 0
        self._counting = threading.Lock()

    def __len__(self) -> int:
        """The number of jobs that have not ended."""
        return self._pending

    def submit(self, job: Callable[[], None]) -> None:
        """Runs ``job`` on a thread of its own; ``job`` must not raise."""
        self._count(1)
        try:
            self._pool.submit(self._run, job if self._stress is None else self._stress.delayed(job))
        except RuntimeError:  # the interpreter is shutting down
            self._run(job)

    def _run(self, job: Callable[[], None]) -> None:
        job()
        self._count(-1)

    def _count(self, difference: int) -> None:
        with self._counting:
            self._pending += difference
