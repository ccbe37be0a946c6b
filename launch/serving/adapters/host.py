"""Loads adapters into a running engine."""

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from launch.serving.adapters.registry import Registry
from launch.serving.answering import Answering


class ReadAdapter(NamedTuple):
    """An adapter's files."""

    path: Path
    values: Mapping[str, np.ndarray]  # as the stacks hold them


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

    def __init__(
        self, reader: AdapterReader, registry: Registry, engine: Answering, runner: AdapterRunner
    ) -> None:
        self.registry = registry
        self._reader, self._engine, self._runner = reader, engine, runner

    def read(self, path: Path) -> dict[str, np.ndarray]:
        """An adapter's files. Raises RequestError for one that cannot be used."""
        return self._reader.read(path)

    async def load(self, name: str, path: Path, values: Mapping[str, np.ndarray]) -> None:
        """Lets clients ask for an adapter. Raises RequestError if the name or all places are
        taken."""
        with self.registry.place(name, path) as adapter:
            put = partial(self._runner.put_adapter, adapter.place, values)
            await asyncio.wrap_future(self._engine.between_steps(put))

    def load_first(self, adapters: Mapping[str, ReadAdapter]) -> None:
        """The same for those that the command line names, before there are requests."""
        for name, (path, values) in adapters.items():
            with self.registry.place(name, path) as adapter:
                put = partial(self._runner.put_adapter, adapter.place, values)
                self._engine.between_steps(put).result()
