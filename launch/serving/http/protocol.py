"""HTTP connections with limits: on their number, on headers, and on the time that these take."""

import asyncio
import resource
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_SPARE_FILES = 64  # that a server needs beside its connections
_REFUSAL = (
    b"HTTP/1.1 %b\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n"
    b"connection: close\r\n\r\n%b"
)


@dataclass(frozen=True)
class ConnectionLimits:
    """The limits of connections before there is a request on them.

    Attributes:
      connections: at the same time; further ones get 503.
      header_bytes: of one request; more get 431.
      header_seconds: from a connection's beginning, or a request's first byte, to the end of its
        headers; then the connection is closed with 408.
    """

    connections: int
    header_bytes: int
    header_seconds: float


class LimitedProtocol(HttpToolsProtocol):
    """Uvicorn's protocol, which by itself waits for headers for ever and takes any number."""

    def __init__(self, *, limits: ConnectionLimits, **settings: Any) -> None:
        super().__init__(**settings)
        self._limits = limits
        self._arrived_bytes = 0  # since the last request's end, as long as headers come
        self._header_bytes = 0  # of headers that are complete
        self._is_in_headers = True
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            self._refuse(b"503 Service Unavailable", b"too many connections are open\n")
        else:
            self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_in_headers:
            self._arrived_bytes += len(data)
            if self._deadline is None:
                self._expect_headers()
        super().data_received(data)
        if self._is_in_headers and self._arrived_bytes > self._limits.header_bytes:
            self._refuse_headers()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > self._limits.header_bytes:
            self._refuse_headers()

    # The parser goes on with what it has, also on a connection that has been refused.

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self._is_in_headers, self._arrived_bytes, self._header_bytes = False, 0, 0
        if not self.transport.is_closing():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.transport.is_closing():
            super().on_message_complete()
        self._is_in_headers = True

    def _expect_headers(self) -> None:
        self._deadline = self.loop.call_later(
            self._limits.header_seconds, self._refuse, b"408 Request Timeout", b"no headers came\n"
        )

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse_headers(self) -> None:
        self._refuse(b"431 Request Header Fields Too Large", b"the headers are too large\n")

    def _refuse(self, status: bytes, text: bytes) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            self.transport.write(_REFUSAL % (status, len(text), text))
            self.transport.close()


def allow_connections(count: int) -> int:
    """Raises this process's limit of open files for so many connections, as far as the system lets
    it. Returns how many there can be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return count if soft == resource.RLIM_INFINITY else min(count, soft - _SPARE_FILES)
