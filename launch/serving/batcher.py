"""Work without a state between steps, such as embeddings: it is computed in groups that suit each
other, by one thread that owns the device."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from launch.serving.errors import OverloadedError, ServingError

Item = TypeVar("Item")
Made = TypeVar("Made")


Item_in = TypeVar("Item_in", contravariant=True)
Made_out = TypeVar("Made_out", covariant=True)


class Work(Protocol[Item_in, Made_out]):
    """What is computed, and in which groups."""

    def group(self, waiting: Sequence[Item_in]) -> Sequence[int]:
        """Which of those that wait are computed next, the first of them included."""

    def compute(self, items: Sequence[Item_in]) -> Sequence[Made_out]:
        """The results of a group."""


@dataclass(eq=False)
class _Waiting(Generic[Item, Made]):
    item: Item
    future: "Future[Made]" = field(default_factory=Future)


class _Body(Generic[Item, Made]):
    """The items of one request, and one future for all."""

    def __init__(self, entries: Sequence[_Waiting[Item, Made]], leave: Callable[[], None]) -> None:
        self.results: Future[list[Made]] = Future()
        self._entries, self._leave = entries, leave
        self._left = len(entries)
        self._lock = threading.Lock()
        self.results.add_done_callback(self._take_back)
        for entry in entries:
            entry.future.add_done_callback(self._count)
        if not entries:
            self.results.set_result([])

    def _count(self, future: "Future[Made]") -> None:
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if is_last and self.results.set_running_or_notify_cancel():
            errors = [e.future.exception() for e in self._entries if not e.future.cancelled()]
            error = next(filter(None, errors), None)
            if error is None:
                self.results.set_result([entry.future.result() for entry in self._entries])
            else:
                self.results.set_exception(error)

    def _take_back(self, results: "Future[list[Made]]") -> None:
        for entry in self._entries:
            entry.future.cancel()
        self._leave()


class Load(NamedTuple):
    """The load of a batcher: how busy it is."""

    running: int  # items in the group on the device
    waiting: int  # items
    computed: int  # items since the start
    groups: int  # since the start


class Batcher(Generic[Item, Made]):
    """Computes until `close`; usable as a context manager. A body is a few items, and the limit of
    the queue counts bodies."""

    def __init__(self, work: Work[Item, Made], *, max_waiting: int) -> None:
        self._work, self._max_waiting = work, max_waiting
        self._waiting: list[_Waiting[Item, Made]] = []
        self._running = self._computed = self._groups = 0
        self._bodies = 0  # under way
        self._change = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="batcher", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Batcher[Item, Made]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(self) -> Load:
        """The batcher's load now."""
        with self._change:
            return Load(self._running, len(self._waiting), self._computed, self._groups)

    def submit(self, items: Sequence[Item]) -> "Future[list[Made]]":
        """The results of the items of a body, in their order. Whoever cancels it takes back what
        has not begun.

        The future raises what the work raises, and ServingError at the end of the server. Raises
        OverloadedError if the queue is full.
        """
        body = _Body(self._enter(items), self._leave)
        return body.results

    def close(self) -> None:
        """Ends after the group that is under way; what waits gets an error."""
        with self._change:
            self._closing = True
            self._change.notify()
        self._thread.join()

    def _leave(self) -> None:
        with self._change:
            self._bodies -= 1

    def _enter(self, items: Sequence[Item]) -> list[_Waiting[Item, Made]]:
        entries = [_Waiting[Item, Made](item) for item in items]
        with self._change:
            if self._closing:
                raise OverloadedError("the server is shutting down: no new requests are accepted")
            if self._bodies > self._max_waiting:
                raise OverloadedError(
                    f"{self._bodies} requests are already in progress, the most that the queue "
                    "holds. Try again later."
                )
            self._bodies += 1
            self._waiting.extend(entries)
            self._change.notify()
        return entries

    def _loop(self) -> None:
        while True:
            with self._change:
                self._running = 0
                self._change.wait_for(lambda: self._waiting or self._closing)
                if self._closing:
                    break
                group = self._take()
            if group:
                _settle(group, self._work.compute)
                with self._change:
                    self._computed += len(group)
                    self._groups += 1
        for entry in self._waiting:
            if entry.future.set_running_or_notify_cancel():
                entry.future.set_exception(ServingError("the server has ended"))

    def _take(self) -> list[_Waiting[Item, Made]]:
        """The next group; those for whom nobody waits any more are left out."""
        self._waiting = [entry for entry in self._waiting if not entry.future.cancelled()]
        if not self._waiting:
            return []
        places = set(self._work.group([entry.item for entry in self._waiting]))
        group = [self._waiting[place] for place in sorted(places)]
        self._waiting = [entry for place, entry in enumerate(self._waiting) if place not in places]
        group = [entry for entry in group if entry.future.set_running_or_notify_cancel()]
        self._running = len(group)
        return group


def _settle(
    group: Sequence[_Waiting[Item, Made]], compute: Callable[[Sequence[Item]], Sequence[Made]]
) -> None:
    """Gives everybody of the group a result, or the error."""
    try:
        results = compute([entry.item for entry in group])
    except Exception as error:  # whatever the device says, those who wait must be told
        for entry in group:
            entry.future.set_exception(error)
        return
    for entry, result in zip(group, results, strict=True):
        entry.future.set_result(result)
