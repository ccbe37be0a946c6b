"""A small HTTP server on 127.0.0.1: one thread, bounded connections, headers and time.

A connection serves a single GET request. Incomplete requests are dropped, so a client that sends
half of one can block neither the port nor the process.
"""

from __future__ import annotations

import asyncio
import http
import os
import socket
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass

HOST = "127.0.0.1"
MOST_CONNECTIONS = 512
_HEADER_BYTES = 8 << 10
_PATIENCE_SECONDS = 2.0
"""Time limit for a whole request and its answer."""


def join_from_elsewhere(thread: threading.Thread) -> None:
    """Waits for a thread, unless it is the current one: the garbage collector ends clients in any
    thread, and an exception there would end the process."""
    if thread is not threading.current_thread():
        thread.join()


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to a request."""

    status: http.HTTPStatus
    content_type: str
    body: bytes


def refusal(status: http.HTTPStatus, reason: str) -> Answer:
    """An answer of one line."""
    return Answer(status, "text/plain; charset=utf-8", f"{reason}\n".encode())


class MonitorServer:
    """Answers GET requests for paths on a port, from a thread of its own.

    OSError: the port is taken.
    """

    def __init__(self, port: int, answer: Callable[[str], Answer]) -> None:
        self._answer = answer
        self._socket = socket.create_server((HOST, port), backlog=MOST_CONNECTIONS)
        self._open = 0
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._is_parents = False
        self._thread = threading.Thread(target=self._run, name="neuronjax-monitor", daemon=True)
        self._thread.start()
        os.register_at_fork(after_in_child=_Leave(weakref.ref(self)))

    def close(self) -> None:
        """Closes the port and waits for the thread, unless it is called there."""
        if not self._is_parents and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            join_from_elsewhere(self._thread)

    def leave_to_parent(self) -> None:
        """Closes a forked child's copy of the port, which belongs to the parent."""
        self._is_parents = True
        self._socket.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._socket, limit=_HEADER_BYTES)
        async with server:
            await self._stop.wait()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                writer.write(_response(await self._answer_to(reader)))
                await writer.drain()
            writer.close()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            self._open -= 1

    async def _answer_to(self, reader: asyncio.StreamReader) -> Answer:
        if self._open > MOST_CONNECTIONS:
            return refusal(http.HTTPStatus.SERVICE_UNAVAILABLE, "too many connections")
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            too_large = http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            return refusal(too_large, f"the headers exceed {_HEADER_BYTES} bytes")
        return answered(head, self._answer)


def answered(head: bytes, answer: Callable[[str], Answer]) -> Answer:
    """The response of `answer` to the path in the head of a request, or a refusal."""
    words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return refusal(http.HTTPStatus.BAD_REQUEST, "not an HTTP/1 request")
    if words[0] != "GET":
        return refusal(http.HTTPStatus.METHOD_NOT_ALLOWED, "only GET is supported")
    return answer(words[1])


class _Leave:
    """Notifies a server, if it still exists, that its process is a forked child."""

    def __init__(self, server: weakref.ref[MonitorServer]) -> None:
        self._server = server

    def __call__(self) -> None:
        server = self._server()
        if server is not None:
            server.leave_to_parent()


def _response(answer: Answer) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + answer.body
