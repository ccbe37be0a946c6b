"""A server in this process, on a tiny model that reads bytes."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax

from launch.chat_template import CHATML, ChatTemplate
from launch.serving.config import ServerConfig
from launch.serving.engine import Engine
from launch.serving.grammar import Grammars
from launch.serving.http.app import make_app
from launch.serving.http.context import Served
from launch.serving.http.generation import generation_site
from launch.serving.http.metrics import Metrics
from launch.serving.http.server import Server, bind, run
from launch.serving.http.site import Site
from launch.serving.scheduler.buckets import Buckets
from launch.serving.scheduler.scheduler import SchedulerLimits
from launch.serving.service import Dispatcher, Service
from launch.text import ByteTokenizer
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

    def __init__(self, url: str, server: Server) -> None:
        self.url, self.server = url, server

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
        request = urllib.request.Request(
            f"{self.url}{path}", data=data, headers=dict(headers or {}), method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, _decoded(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _decoded(error.read())


class Running(Listening):
    """The server of a language model, and what tests look at."""

    def __init__(self, listening: Listening, served: Served) -> None:
        super().__init__(listening.url, listening.server)
        self.served = served

    @property
    def engine(self) -> Engine:
        return self.served.service.engine

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
    site: Site, config: ServerConfig | None = None, *, grace: float = 20
) -> Iterator[Listening]:
    """A server on a free port."""
    config = config or ServerConfig(port=0)
    listener = bind(config.host, config.port)
    server = Server(make_app(site, config), site.worker, grace=grace)
    thread = threading.Thread(target=run, args=(server, listener))
    thread.start()
    try:
        yield Listening("http://{}:{}".format(*listener.getsockname()[:2]), server)
    finally:
        server.should_exit = server.force_exit = True
        thread.join()


@contextmanager
def running(
    runner: Any, config: ServerConfig | None = None, *, max_waiting: int = 64, grace: float = 20
) -> Iterator[Running]:
    """A server of the tiny model."""
    dispatcher = Dispatcher()
    with Engine(runner, LIMITS, dispatcher.deliver, max_waiting=max_waiting) as engine:
        served = Served(
            name=NAME,
            service=Service(engine, dispatcher, ByteTokenizer()),
            metrics=Metrics(engine, NAME),
            template=ChatTemplate(CHATML, "the tests", {}),
            grammars=Grammars(None, 256),
            vocab_size=256,
            stop_tokens=(),
            created=1,
        )
        with listening(generation_site(served), config, grace=grace) as server:
            yield Running(server, served)
