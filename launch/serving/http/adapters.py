"""`/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, by vLLM's names and bodies."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from launch.serving.adapters.host import AdapterHost
from launch.serving.http.bodies import Body
from launch.serving.http.site import Endpoint, WholeAnswer


@dataclass(frozen=True)
class Loading(WholeAnswer):
    """One body, read, and the files that it names."""

    host: AdapterHost
    name: str
    path: Path
    values: Mapping[str, np.ndarray]

    @classmethod
    def read(cls, host: AdapterHost, body: Body) -> "Loading":
        """Raises RequestError for an adapter that cannot be used."""
        path = Path(_text(body, "lora_path"))
        return cls(host, _text(body, "lora_name"), path, host.read(path))

    async def whole(self) -> str:
        """Once the adapter can be asked for."""
        await self.host.load(self.name, self.path, self.values)
        return f"Success: LoRA adapter '{self.name}' added successfully."


@dataclass(frozen=True)
class Unloading(WholeAnswer):
    """One body, read."""

    host: AdapterHost
    name: str

    @classmethod
    def read(cls, host: AdapterHost, body: Body) -> "Unloading":
        """Raises RequestError for a body without a name."""
        return cls(host, _text(body, "lora_name"))

    async def whole(self) -> str:
        """Answers of the adapter that are under way are completed."""
        self.host.registry.unload(self.name)
        return f"Success: LoRA adapter '{self.name}' removed successfully."


def adapter_endpoints(host: AdapterHost) -> dict[str, Endpoint]:
    """By path."""
    return {
        "/v1/load_lora_adapter": Endpoint(partial(Loading.read, host)),
        "/v1/unload_lora_adapter": Endpoint(partial(Unloading.read, host)),
    }


def _text(body: Body, name: str) -> str:
    value: str = body.text(name, "")
    if not value:
        raise body.fail(name, "a string that is not empty")
    return value
