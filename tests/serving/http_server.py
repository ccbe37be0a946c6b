"""A server whose engine is in this process, on a tiny model that reads bytes."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax

from launch.serving.answering import Answering
from launch.serving.backend import Backend
from launch.serving.config import ServerConfig
from launch.serving.desk import EngineDesk
from launch.serving.engine import Engine
from launch.serving.front import Front
from launch.serving.grammar import Grammars
from launch.serving.http.generation import LanguageModel
from launch.serving.http.tasks import Serve
from launch.serving.listener import bind
from launch.serving.scheduler.buckets import Buckets
from launch.serving.scheduler.limits import SchedulerLimits
from tests.serving.engines import Model, tiny_model

NAME, CONTEXT = "tiny", 160
LIMITS = SchedulerLimits(
    context=CONTEXT,
    blocks=64,
    block_size=8,
    buckets=Buckets((4,), (1,), (32,), (CONTEXT // 8,), 32),
)


def byte_model() -> Model:
    """A model with a token for each byte."""
    return tiny_model(jax.devices("neuron")[:1], vocab_size=256, max_seq_len=CONTEXT)


class Listening:
    """A server, and how to ask it."""

    def __init__(self, url: str, front: Front) -> None:
        self.url, self.front = url, front

    def ask(
        self,
        path: str,
        body: Any = None,
        *,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        method: str | None = None,
    ) -> tuple[int, Any]:
        """The status and the JSON, or the text, of an answer."""
        if body is not None:
            data = json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **(headers or {})}
        request = urllib.request.Request(
            f"{self.url}{path}", data=data, headers=sent, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, _decoded(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _decoded(error.read())


class Running(Listening):
    """The server of a language model, and what tests look at."""

    def __init__(self, listening: Listening, engine: Answering) -> None:
        super().__init__(listening.url, listening.front)
        self.engine = engine

    def wait_until_idle(self, timeout: float = 30) -> None:
        """Until no request is under way and no block is held."""
        end = time.monotonic() + timeout
        while not (self.engine.is_idle and self.engine.load().blocks_held == 0):
            assert time.monotonic() < end, f"still busy: {self.engine.load()}"
            time.sleep(0.01)


def _decoded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode()


@contextmanager
def listening(
    backend: Backend, config: ServerConfig | None = None, *, grace: float = 20
) -> Iterator[Listening]:
    """A server on a free port; its clients' process is another one."""
    config = replace(config or ServerConfig(port=0), grace_period=grace)
    with bind(config) as listener, Front([listener]) as front:
        front.start(backend, Serve(listener.fileno(), config, "neuron"))
        yield Listening("http://{}:{}".format(*listener.getsockname()[:2]), front)
        front.halt()


@contextmanager
def running(
    runner: Any,
    config: ServerConfig | None = None,
    *,
    max_waiting: int = 64,
    grace: float = 20,
    chat_template: str | None = None,
    tokens_per_minute: int | None = None,
) -> Iterator[Running]:
    """A server of the tiny model."""
    make = partial(Engine, runner, LIMITS, max_waiting=max_waiting)
    recipe = LanguageModel(
        name=NAME,
        files=Path("none"),
        chat_template=chat_template,
        tokens_per_minute=tokens_per_minute,
        vocab_size=256,
        stop_tokens=(),
        limits=LIMITS,
        created=1,
    )
    with (
        EngineDesk(make, Grammars(None, 256)) as desk,
        listening(Backend(recipe, desk), config, grace=grace) as server,
    ):
        yield Running(server, desk.engine)
