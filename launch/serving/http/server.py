"""The server as a process: until SIGTERM or Ctrl-C, and the answers that are under way then."""

import asyncio
import signal
import socket
import time
from types import FrameType

import uvicorn
import uvloop
from starlette.types import ASGIApp

from launch.program import say
from launch.serving.errors import ServingError
from launch.serving.http.site import Worker


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises ServingError if the port is taken or the address is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)  # who comes before the server runs waits for it
    except OverflowError as error:
        listener.close()
        raise ServingError(f"--port={port}: ports lie between 0 and 65535") from error
    except OSError as error:
        listener.close()
        raise ServingError(
            f"cannot listen on {host}:{port}: {error.strerror or error}. Give another --port, or "
            "end the program that has it."
        ) from error
    return listener


class Server(uvicorn.Server):
    """Drains at the first signal: answers under way are completed, new requests get 503. A second
    signal, or the end of the grace time, ends what is left."""

    def __init__(self, app: ASGIApp, worker: Worker, *, grace: float) -> None:
        config = uvicorn.Config(
            app,
            http="httptools",  # h11 takes a third of the time of a small write
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=2,
            lifespan="off",
        )
        super().__init__(config)
        self._worker, self._grace = worker, grace
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Until a signal."""
        self._loop = asyncio.get_running_loop()
        self._worker.attach(self._loop)
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called in the main thread, between two steps of the event loop or within one."""
        if self._worker.draining:
            self.should_exit = self.force_exit = True
        else:
            self.drain(signal.Signals(sig).name)

    def drain(self, why: str) -> None:
        """Takes no new requests, and ends when those under way are answered. From any thread."""
        assert self._loop is not None
        self._worker.draining = True
        self._loop.call_soon_threadsafe(self._start_to_drain, why)

    def _start_to_drain(self, why: str) -> None:
        say(f"{why}: completing the answers under way, for {self._grace:g} s at most")
        self._drain = asyncio.ensure_future(self._wait())

    async def _wait(self) -> None:
        end = time.monotonic() + self._grace
        while not self._worker.is_idle and time.monotonic() < end:
            await asyncio.sleep(0.02)
        self.should_exit = True


def run(server: Server, listener: socket.socket) -> None:
    """Serves until a signal ends it."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.serve([listener]))
