"""Which adapters there are, and in which place of the stacks each lies."""

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launch.serving.errors import RequestError
from launch.serving.requests import Adapter


class Registry:
    """The adapters of one model. From any thread.

    A place is free again when nobody uses the adapter that was unloaded any more.
    """

    def __init__(self, places: int, model: str = "") -> None:
        self._model = model  # its name is no adapter's
        self._free = list(range(places, 0, -1))  # 0 is for texts without an adapter
        self._most = places
        self._numbers = itertools.count(1)
        self._adapters: dict[str, Adapter] = {}
        self._leaving: set[int] = set()  # numbers of those that were unloaded while in use
        self._users: Counter[int] = Counter()  # by number
        self._lock = threading.Lock()

    @property
    def adapters(self) -> list[Adapter]:
        """Those that can be asked for, in the order of their arrival."""
        return list(self._adapters.values())

    def find(self, name: str) -> Adapter | None:
        """The one with a name."""
        return self._adapters.get(name)

    @contextmanager
    def place(self, name: str, path: Path) -> Iterator[Adapter]:
        """A place for a new adapter, which can be asked for when the block has ended.

        Raises RequestError if there is one of this name, or no place.
        """
        with self._lock:
            if name in (*self._adapters, self._model):
                raise RequestError(f"{name!r} is loaded already; unload it first", "lora_name")
            if not self._free:
                raise RequestError(
                    f"all {self._most} places for adapters are taken (--max_loras): unload one of "
                    f"{', '.join(self._adapters)}",
                    "lora_name",
                )
            adapter = Adapter(name, path, self._free.pop(), next(self._numbers))
        try:
            yield adapter
        except BaseException:
            self._free.append(adapter.place)
            raise
        with self._lock:
            if name in self._adapters:
                self._free.append(adapter.place)
                raise RequestError(f"the adapter {name!r} was loaded meanwhile", "lora_name")
            self._adapters[name] = adapter

    def unload(self, name: str) -> None:
        """Nobody can ask for the adapter any more; raises RequestError if there is none."""
        with self._lock:
            adapter = self._adapters.pop(name, None)
            if adapter is None:
                known = ", ".join(self._adapters) or "none"
                raise RequestError(
                    f"the adapter {name!r} is not loaded; there is {known}", "lora_name"
                )
            self._leaving.add(adapter.number)
            self._clear(adapter)

    @contextmanager
    def used(self, adapter: Adapter | None) -> Iterator[None]:
        """Keeps the adapter in its place meanwhile. Raises RequestError if it has been unloaded."""
        if adapter is None:
            yield
            return
        with self._lock:
            if self._adapters.get(adapter.name) != adapter:
                raise RequestError(f"the adapter {adapter.name!r} has been unloaded", "model")
            self._users[adapter.number] += 1
        try:
            yield
        finally:
            with self._lock:
                self._users[adapter.number] -= 1
                self._clear(adapter)

    def _clear(self, adapter: Adapter) -> None:
        if adapter.number in self._leaving and not self._users[adapter.number]:
            self._leaving.discard(adapter.number)
            del self._users[adapter.number]
            self._free.append(adapter.place)
