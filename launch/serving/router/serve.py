"""Serves a model by several servers, which it starts, or by those of other machines."""

import asyncio
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import uvicorn
import uvloop
from starlette.types import ASGIApp

from launch.program import say
from launch.serving.config import ServerConfig
from launch.serving.errors import ServingError
from launch.serving.http.app import let_pages_in
from launch.serving.http.gate import Gate
from launch.serving.http.server import uvicorn_settings
from launch.serving.listener import address, bind
from launch.serving.model_choice import ModelChoice
from launch.serving.router.app import Router
from launch.serving.router.job import ReplicaJob
from launch.serving.router.replica import Replica

_LONGEST_STOP = 5.0
"""Seconds that a server may take to end which has no answers under way."""
_LOOK_SECONDS = 0.05


def serve_replicas(choice: ModelChoice, config: ServerConfig) -> int:
    """Starts `config.replicas` servers, and serves until a signal ends it; the exit code.

    The first one compiles what all need, and the others find it in --compilation_cache_dir.
    """
    with tempfile.TemporaryDirectory(prefix="neuronjax-") as folder:
        own = replace(config, replicas=1, ssl_certfile=None, ssl_keyfile=None, access_log=False)
        replicas = [
            Replica(
                number,
                "http://localhost",
                ReplicaJob(choice, replace(own, uds=str(Path(folder, f"{number}.sock")))),
            )
            for number in range(config.replicas)
        ]
        return route(choice.name, replicas, config)


def route(name: str, replicas: Sequence[Replica], config: ServerConfig) -> int:
    """Serves by these servers until a signal ends it, or all are given up; the exit code."""
    config.key()
    config.check_certificate()
    with (
        bind(config) as listener,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(_run(name, replicas, config, listener))


async def _run(
    name: str, replicas: Sequence[Replica], config: ServerConfig, listener: socket.socket
) -> int:
    router = Router(replicas, config)
    server = _Server(let_pages_in(Gate(router, config), config), router, config)
    watches = asyncio.ensure_future(_watch_all(replicas))
    serving = asyncio.ensure_future(server.serve([listener]))
    welcome = asyncio.ensure_future(_welcome(name, replicas, config, listener))
    try:
        await asyncio.wait((serving, watches), return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            raise ServingError("no server could be started: see above")
        return 0
    finally:
        for task in (welcome, watches, serving):
            task.cancel()
        await asyncio.gather(welcome, watches, serving, return_exceptions=True)
        await asyncio.gather(*(replica.stop(_LONGEST_STOP) for replica in replicas))
        await asyncio.gather(*(replica.close() for replica in replicas))


async def _watch_all(replicas: Sequence[Replica]) -> None:
    """Watches all of them; those that this program starts, only when the first is up or given up:
    it compiles what they need. Returns when all are given up."""
    first, *others = replicas
    watches = [asyncio.ensure_future(first.watch())]
    try:
        while first.job is not None and not first.is_up and not watches[0].done():
            await asyncio.sleep(_LOOK_SECONDS)
        watches += [asyncio.ensure_future(replica.watch()) for replica in others]
        await asyncio.gather(*watches)
    finally:
        for watch in watches:
            watch.cancel()


async def _welcome(
    name: str, replicas: Sequence[Replica], config: ServerConfig, listener: socket.socket
) -> None:
    while not any(replica.is_up for replica in replicas):
        await asyncio.sleep(_LOOK_SECONDS)
    say(f"{name} at {address(listener, config)}: {len(replicas)} replicas; Ctrl-C ends it")


class _Server(uvicorn.Server):
    """The first signal lets answers under way be completed, while new requests get 503; the second
    one ends them."""

    def __init__(self, app: ASGIApp, router: Router, config: ServerConfig) -> None:
        super().__init__(uvicorn_settings(app, config))
        self._router, self._grace = router, config.grace_period
        self._drain: asyncio.Task[None] | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop, numbers = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self._hear, signal.Signals(number).name)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _hear(self, name: str) -> None:
        if self._drain is not None:
            self.should_exit = self.force_exit = True
            return
        self._router.draining = name
        say(f"{name}: completing the answers under way, for {self._grace:g} s at most")
        self._drain = asyncio.ensure_future(self._wait())

    async def _wait(self) -> None:
        end = time.monotonic() + self._grace
        while self._router.under_way and time.monotonic() < end:
            await asyncio.sleep(0.02)
        self.should_exit = True
