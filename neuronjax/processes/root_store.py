"""A key-value store for processes that Neuron's variables alone describe.

Process 0 serves it at ``NEURON_RT_ROOT_COMM_ID``, where the real runtime's processes meet too.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener

from neuronjax.errors import PeerError

_RETRY_SECONDS = 0.1


class RootStore:
    """The store at ``address`` (host:port), as process ``index`` sees it."""

    def __init__(self, address: str, index: int, timeout: float) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._text = address
        self._timeout = timeout
        self._connection: Connection | None = None
        if index == 0:
            _serve(self._address, self._key)

    @property
    def _key(self) -> bytes:
        return f"neuronjax {self._text}".encode()

    def put(self, key: str, value: str) -> None:
        """Raises ``PeerError`` if process 0 cannot be reached in time."""
        self._ask({"put": key, "value": value})

    def get(self, key: str, seconds: float) -> str | None:
        deadline = time.monotonic() + seconds
        while (value := self._ask({"get": key})) is None and time.monotonic() < deadline:
            time.sleep(_RETRY_SECONDS)
        return value

    def _ask(self, request: dict[str, str]) -> str | None:
        connection = self._connection or self._connect()
        try:
            connection.send_bytes(json.dumps(request).encode())
            return json.loads(connection.recv_bytes())
        except (OSError, EOFError) as error:
            raise PeerError(f"process 0 at {self._text} is gone: {error}") from None

    def _connect(self) -> Connection:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                self._connection = Client(self._address, authkey=self._key)
            except (OSError, EOFError, AuthenticationError) as error:
                if time.monotonic() > deadline:
                    raise PeerError(
                        f"process 0 does not answer at NEURON_RT_ROOT_COMM_ID={self._text} within "
                        f"{self._timeout:g} seconds: {error}. Start it, or name its address."
                    ) from None
                time.sleep(_RETRY_SECONDS)
            else:
                return self._connection


def _serve(address: tuple[str, int], key: bytes) -> None:
    try:
        listener = Listener(address, backlog=64, authkey=key)
    except OSError as error:
        raise PeerError(
            f"process 0 cannot listen at NEURON_RT_ROOT_COMM_ID={address[0]}:{address[1]}: "
            f"{error.strerror}. Name an address of this machine and a free port."
        ) from None
    values: dict[str, str] = {}

    def answer(connection: Connection) -> None:
        with contextlib.suppress(OSError, EOFError, ValueError, KeyError):
            while True:
                request = json.loads(connection.recv_bytes())
                if "put" in request:
                    values[request["put"]] = request["value"]
                value = values.get(request.get("get"))
                connection.send_bytes(json.dumps(value).encode())
        connection.close()

    def accept() -> None:
        while True:
            with contextlib.suppress(AuthenticationError, EOFError, OSError):
                connection = listener.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, name="neuronjax-root-store", daemon=True).start()
