"""Adapters of a running engine: any number on disk, the last ones in memory, some on the device."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from launch.serving.answering import Answering
from launch.serving.requests import Adapter, Request

Values = Mapping[str, np.ndarray]
Enter = Callable[[Request], None]
Refuse = Callable[[Exception], None]


class AdapterReader(Protocol):
    """Knows which adapters suit a model."""

    def read(self, path: Path) -> dict[str, np.ndarray]:
        """An adapter's files. Raises RequestError for one that cannot be used."""


class AdapterRunner(Protocol):
    """A device that has room for adapters."""

    def put_adapter(self, place: int, values: Values) -> None:
        """Lays an adapter into the stacks, for steps from the next one on."""


class AdapterHost:
    """Gives requests the places of their adapters. Who has been used the longest ago goes for one
    that has none; as long as all are in use, requests for others wait."""

    def __init__(
        self,
        reader: AdapterReader,
        runner: AdapterRunner,
        engine: Answering,
        *,
        places: int,
        in_memory: int,
    ) -> None:
        self._reader, self._engine, self._runner = reader, engine, runner
        self._in_memory = in_memory
        self._values: OrderedDict[int, Values] = (
            OrderedDict()
        )  # by number, the last used at the end
        self._free = list(range(places, 0, -1))  # 0 is for texts without an adapter
        self._places: OrderedDict[int, int] = OrderedDict()  # by number, the last used at the end
        self._users: Counter[int] = Counter()  # by number
        self._requests: dict[str, int] = {}  # numbers of those that have a place
        self._waiting: dict[str, tuple[Request, Enter, Refuse]] = {}
        self._lock = threading.RLock()
        self._thread = ThreadPoolExecutor(1)  # files take their time

    def check(self, path: Path) -> "Future[None]":
        """The future raises RequestError for an adapter that cannot be used."""

        def read() -> None:
            self._reader.read(path)

        return self._thread.submit(read)

    def admit(self, request: Request, enter: Enter, refuse: Refuse) -> None:
        """Calls `enter` with the request when its adapter has a place, or `refuse` with the reason
        why it can have none."""
        with self._lock:
            self._waiting[request.id] = request, enter, refuse
        self._thread.submit(self._advance)

    def leave(self, request_id: str) -> None:
        """A request is over, or is not to be answered any more."""
        with self._lock:
            self._waiting.pop(request_id, None)
            number = self._requests.pop(request_id, None)
            if number is not None:
                self._users[number] -= 1
            if self._waiting:
                self._thread.submit(self._advance)

    def close(self) -> None:
        """Ends; nobody waits any more."""
        self._thread.shutdown(cancel_futures=True)

    def _advance(self) -> None:
        """Lets those in whose adapters have a place, or can get one."""
        for request_id, (request, enter, refuse) in list(self._waiting.items()):
            assert request.adapter is not None
            place = self._reserve(request_id, request.adapter)
            if place is None:
                continue
            try:
                if request.adapter.number not in self._places:
                    laid = self._lay_down(request.adapter, place)
                    laid.add_done_callback(partial(self._check_laid, request, refuse))
                enter(replace(request, adapter=request.adapter._replace(place=place)))
            except Exception as error:  # it is whoever asked who must know
                self.leave(request_id)
                refuse(error)

    def _reserve(self, request_id: str, adapter: Adapter) -> int | None:
        """A place that no other adapter gets before the request has left; None if all are in
        use."""
        with self._lock:
            if request_id not in self._waiting:
                return None
            place = self._places.get(adapter.number)
            if place is not None:
                self._places.move_to_end(adapter.number)
            elif self._free:
                place = self._free.pop()
            else:
                idle = next((n for n in self._places if not self._users[n]), None)
                if idle is None:
                    return None
                place = self._places.pop(idle)
                del self._users[idle]
            del self._waiting[request_id]
            self._requests[request_id] = adapter.number
            self._users[adapter.number] += 1
            return place

    def _check_laid(self, request: Request, refuse: Refuse, done: "Future[None]") -> None:
        """Refuses a request whose adapter could not be laid down."""
        error = done.exception()
        if isinstance(error, Exception):
            self._engine.cancel(request.id)
            self.leave(request.id)
            refuse(error)

    def _lay_down(self, adapter: Adapter, place: int) -> "Future[None]":
        """Lays an adapter into a place before the next step is planned."""
        try:
            values = self._values.pop(adapter.number, None) or self._reader.read(adapter.path)
            laid = self._engine.between_steps(partial(self._runner.put_adapter, place, values))
        except BaseException:
            self._free.append(place)
            raise
        self._places[adapter.number] = place
        self._values[adapter.number] = values
        if len(self._values) > self._in_memory:
            self._values.popitem(last=False)
        return laid
