"""Loads adapters into a running engine."""

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from launch.serving.adapters.registry import Registry
from launch.serving.adapters.stacks import ReadAdapter, Stacks
from launch.serving.engine import Answering


class AdapterRunner(Protocol):
    """A device that has room for adapters."""

    def put_adapter(self, place: int, values: Mapping[str, np.ndarray]) -> None:
        """Lays an adapter into the stacks, for steps from the next one on."""


class AdapterHost:
    """The room for adapters of one engine."""

    def __init__(
        self, stacks: Stacks, registry: Registry, engine: Answering, runner: AdapterRunner
    ) -> None:
        self.registry = registry
        self._stacks, self._engine, self._runner = stacks, engine, runner

    def read(self, path: Path) -> dict[str, np.ndarray]:
        """An adapter's files. Raises RequestError for one that cannot be used."""
        return self._stacks.read(path)

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
