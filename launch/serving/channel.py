"""Messages over a socket between two processes of one program: a length, and that many pickled
bytes."""

import pickle
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

_LENGTH = struct.Struct("!Q")


def packed(message: Any) -> bytes:
    """A message as it is sent."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


class Unpacker:
    """Messages of bytes that come in pieces of any size."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """The messages that are complete with the next bytes."""
        self._data += data
        while len(self._data) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._data)[0]
            if len(self._data) < end:
                break
            message = bytes(memoryview(self._data)[_LENGTH.size : end])
            del self._data[:end]
            yield pickle.loads(message)


def receive(connection: socket.socket) -> Any:
    """Reads one message, and no byte of the next; None if the other end has gone."""
    head = _read(connection, _LENGTH.size)
    data = None if head is None else _read(connection, _LENGTH.unpack(head)[0])
    return None if data is None else pickle.loads(data)


def _read(connection: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            return None
        data += piece
    return bytes(data)


class Channel:
    """The end of a process with threads. Whatever is sent to an end that has gone is dropped."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._closed = False

    def send(self, message: Any) -> None:
        """Sends a message, from any thread; waits while the other end does not read."""
        data = packed(message)
        with self._lock, suppress(OSError):
            self._connection.sendall(data)

    def messages(self) -> Iterator[Any]:
        """Yields the messages that come, until the other end has gone."""
        unpacker = Unpacker()
        while data := self._receive_bytes():
            yield from unpacker.feed(data)

    def _receive_bytes(self) -> bytes:
        """The next bytes; none if an end has gone. This end may be closed by another thread."""
        try:
            return self._connection.recv(1 << 16)
        except ConnectionError:
            return b""
        except OSError:
            if self._closed:
                return b""
            raise

    def close(self) -> None:
        """Ends `messages` on both ends."""
        self._closed = True
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
