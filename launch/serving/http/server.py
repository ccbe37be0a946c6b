"""The application on a socket, until it is told to end or the device's process has gone."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from launch.program import say
from launch.serving.config import ServerConfig
from launch.serving.errors import OverloadedError, ServingError
from launch.serving.http.link import Link
from launch.serving.http.protocol import ConnectionLimits, LimitedProtocol, allow_connections


def uvicorn_settings(app: ASGIApp, config: ServerConfig) -> uvicorn.Config:
    """How uvicorn is to serve an application."""
    limits = ConnectionLimits(
        connections=allow_connections(config.max_connections),
        header_bytes=config.max_header_bytes,
        header_seconds=config.header_timeout,
    )
    return uvicorn.Config(
        app,
        # On httptools, as h11 takes a third of the time of a small write.
        http=partial(LimitedProtocol, limits=limits),  # type: ignore[arg-type]
        log_level="info" if config.access_log else "warning",
        access_log=config.access_log,
        proxy_headers=False,  # nobody asks where a client is
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
        timeout_graceful_shutdown=2,
        lifespan="off",
    )


class Server(uvicorn.Server):
    """Drains when it is told to: answers under way are completed, new requests get 503, and so do
    answers that the grace time was too short for. Halting ends what is left."""

    def __init__(self, app: ASGIApp, link: Link, config: ServerConfig) -> None:
        super().__init__(uvicorn_settings(app, config))
        self._link, self._grace = link, config.grace_period
        self._drain: asyncio.Task[None] | None = None
        self._has_lost = False

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Raises ServingError if the device's process has gone."""
        self._link.on_drain, self._link.on_halt = self._start_to_drain, self._halt
        self._link.on_loss = self._lose
        await super().serve(sockets)
        if self._has_lost:
            raise ServingError(f"{self._link.failure}: the server can no longer answer")

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are for the process with the device, which tells this one."""
        yield

    def _start_to_drain(self, why: str) -> None:
        self._link.draining = True
        say(f"{why}: completing the answers under way, for {self._grace:g} s at most")
        self._drain = asyncio.ensure_future(self._wait())

    async def _wait(self) -> None:
        end = time.monotonic() + self._grace
        while not self._link.is_idle and time.monotonic() < end:
            await asyncio.sleep(0.02)
        if not self._link.is_idle:
            self._link.give_up(
                OverloadedError(
                    "the server ends: the answer was not complete within the "
                    f"{self._grace:g} s that it had left"
                )
            )
        self._end()

    def _lose(self) -> None:
        self._has_lost = not self.should_exit  # whoever tells it to end may go first
        self._end()

    def _end(self) -> None:
        self.should_exit = True

    def _halt(self) -> None:
        self.should_exit = self.force_exit = True
