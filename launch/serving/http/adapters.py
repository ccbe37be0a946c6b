"""`/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, by vLLM's names and bodies."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from launch.serving.errors import RequestError
from launch.serving.http.bodies import Body
from launch.serving.http.service import Service
from launch.serving.http.site import Endpoint, WholeAnswer


@dataclass(frozen=True)
class Loading(WholeAnswer):
    """The parsed body of a request to load an adapter."""

    service: Service
    name: str
    path: Path

    @classmethod
    def read(cls, service: Service, folders: Sequence[Path], body: Body) -> "Loading":
        """Raises RequestError for a body without a name or a path, or with one that does not lie
        below one of the folders."""
        name, path = _text(body, "lora_name"), Path(_text(body, "lora_path")).resolve()
        if not any(path.is_relative_to(folder.resolve()) for folder in folders):
            below = ", ".join(map(str, folders)) or "none"
            raise RequestError(
                f"lora_path does not lie below a folder of --lora_folders ({below})", "lora_path"
            )
        return cls(service, name, path)

    async def whole(self) -> str:
        """Answers when the adapter can be asked for. Raises RequestError for one that cannot be
        used."""
        await self.service.load_adapter(self.name, self.path)
        return f"Success: LoRA adapter '{self.name}' added successfully."


@dataclass(frozen=True)
class Unloading(WholeAnswer):
    """The parsed body of a request to unload an adapter."""

    service: Service
    name: str

    @classmethod
    def read(cls, service: Service, body: Body) -> "Unloading":
        """Raises RequestError for a body without a name."""
        return cls(service, _text(body, "lora_name"))

    async def whole(self) -> str:
        """Unloads the adapter; those of its answers that are under way are completed."""
        self.service.registry.unload(self.name)
        return f"Success: LoRA adapter '{self.name}' removed successfully."


LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


def adapter_endpoints(service: Service, folders: Sequence[Path]) -> dict[str, Endpoint]:
    """The endpoints by path; adapters are loaded from `folders` alone."""
    return {
        LOAD: Endpoint(partial(Loading.read, service, folders), needs_key=True),
        UNLOAD: Endpoint(partial(Unloading.read, service), needs_key=True),
    }


def refusing_endpoints() -> dict[str, Endpoint]:
    """The endpoints of a server that was started without room for adapters: all refuse."""
    return dict.fromkeys((LOAD, UNLOAD), Endpoint(_refuse))


def _refuse(body: Body) -> NoReturn:
    raise RequestError("this server has no room for adapters: start it with --enable_lora")


def _text(body: Body, name: str) -> str:
    value: str = body.text(name, "")
    if not value:
        raise body.fail(name, "a string that is not empty")
    return value
