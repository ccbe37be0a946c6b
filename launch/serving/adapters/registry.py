"""Which adapters there are, by their names."""

import itertools
import threading
from pathlib import Path

from launch.serving.errors import RequestError
from launch.serving.requests import Adapter


class Registry:
    """The adapters of one model: any number. From any thread."""

    def __init__(self, model: str) -> None:
        self._model = model  # its name is no adapter's
        self._numbers = itertools.count(1)
        self._adapters: dict[str, Adapter] = {}
        self._lock = threading.Lock()

    @property
    def adapters(self) -> list[Adapter]:
        """The adapters that can be asked for, in the order of their arrival."""
        return list(self._adapters.values())

    def find(self, name: str) -> Adapter | None:
        """The adapter with a name; None if there is none."""
        return self._adapters.get(name)

    def check_free(self, name: str) -> None:
        """Raises RequestError if there is a model or an adapter of this name."""
        if name in (*self._adapters, self._model):
            raise RequestError(f"{name!r} is loaded already; unload it first", "lora_name")

    def add(self, name: str, path: Path) -> None:
        """Lets clients ask for an adapter; raises as `check_free`."""
        with self._lock:
            self.check_free(name)
            self._adapters[name] = Adapter(name, path, next(self._numbers))

    def unload(self, name: str) -> None:
        """Nobody can ask for the adapter any more; raises RequestError if there is none."""
        with self._lock:
            if self._adapters.pop(name, None) is None:
                known = ", ".join(self._adapters) or "none"
                raise RequestError(
                    f"the adapter {name!r} is not loaded; there is {known}", "lora_name"
                )
