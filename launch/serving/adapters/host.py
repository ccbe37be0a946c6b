"""Loads adapters into a running engine."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from launch.serving.answering import Answering


class AdapterReader(Protocol):
    """Knows which adapters suit a model."""

    def read(self, path: Path) -> dict[str, np.ndarray]:
        """An adapter's files. Raises RequestError for one that cannot be used."""


class AdapterRunner(Protocol):
    """A device that has room for adapters."""

    def put_adapter(self, place: int, values: Mapping[str, np.ndarray]) -> None:
        """Lays an adapter into the stacks, for steps from the next one on."""


class AdapterHost:
    """The room for adapters of one engine."""

    def __init__(self, reader: AdapterReader, runner: AdapterRunner, engine: Answering) -> None:
        self._reader, self._engine, self._runner = reader, engine, runner

    def check(self, path: Path) -> None:
        """Raises RequestError for an adapter that cannot be used."""
        self._reader.read(path)

    def put(self, path: Path, place: int) -> None:
        """Lays an adapter into a place between two steps. Raises RequestError for one that cannot
        be used."""
        values = self._reader.read(path)
        self._engine.between_steps(partial(self._runner.put_adapter, place, values)).result()
