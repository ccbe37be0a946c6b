"""Events that are true: ready when the work is done, with its error if it failed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

OnReady = Callable[[BaseException | None], None]


class Event:
    """Set once, with an error or without; every ``on_ready`` function runs exactly once."""

    __slots__ = ("_callbacks", "_done", "_lock", "error")

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._callbacks: list[OnReady] = []
        self._done = threading.Event()
        self._lock = threading.Lock()

    def is_ready(self) -> bool:
        return self._done.is_set()

    def set(self, error: BaseException | None = None) -> None:
        """Marks the work as done and runs what waits for it. A second call changes nothing."""
        with self._lock:
            if self._done.is_set():
                return
            self.error = error
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(error)

    def on_ready(self, callback: OnReady) -> None:
        """Runs ``callback(error)`` when the event is set, at once if it is."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback(self.error)

    def wait(self) -> BaseException | None:
        """Blocks until the event is set; returns its error."""
        self._done.wait()
        return self.error


class Waiters:
    """Threads that wait for work in place of callers who must not.

    One job may wait for another (a host callback may use the platform), so a job never queues
    behind a busy thread: there are as many threads as waiting jobs, and idle ones are reused.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = 0
        self._lock = threading.Lock()

    def submit(self, job: Callable[[], None]) -> None:
        """Runs ``job`` on a thread of its own; ``job`` must not raise."""
        with self._lock:
            spawn = self._idle == 0
            if not spawn:
                self._idle -= 1
        self._jobs.put(job)
        if spawn:
            threading.Thread(target=self._work, name="neuronjax-waiter", daemon=True).start()

    def _work(self) -> None:
        while True:
            self._jobs.get()()
            with self._lock:
                self._idle += 1
