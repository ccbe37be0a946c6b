"""Who takes part: every process tells what it is, reads what the others are, and connects to them.

They find each other through a key-value store that all reach, that of ``jax.distributed``. Whoever
is missing, or was started for something else, is named; every process ends with such an error, not
only one.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Protocol

from neuronjax.errors import PeerError
from neuronjax.processes.links import Links


class Store(Protocol):
    """Texts by key, for all processes."""

    def put(self, key: str, value: str) -> None:
        """Enters a text under a new key."""

    def get(self, key: str, seconds: float) -> str | None:
        """The text of a key; ``None`` if there is none yet after so many seconds."""


@dataclass(frozen=True)
class Process:
    """This process among those that ``jax.distributed.initialize`` joined."""

    index: int
    count: int
    store: Store
    timeout: float
    """How long to wait for a process that gives no sign of life, in seconds."""
    late_timeout: float
    """How long to wait for one that lives."""
    generation: int = 0
    """How many clients were made before, here and on every process."""


@dataclass(frozen=True)
class Description:
    """What a process says of itself; whatever is in ``agreed`` must be equal on all."""

    agreed: Mapping[str, str]
    """What it is -> value, in the words of an error message."""
    cores: Sequence[int]
    """The logical cores that it has, counted over its host."""


@dataclass(frozen=True)
class Roster:
    """The processes of a job, and the links to them."""

    index: int
    descriptions: Sequence[Description]
    links: Links


def join(process: Process, own: Description) -> Roster:
    """Meets the other processes.

    Raises:
      PeerError: a process is missing, or says something else than this one.
    """
    deadline = time.monotonic() + process.timeout
    board = _Board(process, deadline)
    machine, key = _machine_id(), secrets.token_hex(16)
    board.post("description", {**asdict(own), "machine": machine, "key": key})
    notes = board.read("description", "has not started platform neuron")
    _agree(process, own, notes)
    here = all(note["machine"] == machine for note in notes)
    address = "127.0.0.1" if here else _own_address()
    with _listener(address, process.count, key) as listener:
        board.post("address", {"address": listener.address})
        addresses = board.read("address", "has not opened its port")
        waiting = _Accepting(listener, range(process.index + 1, process.count))
        connections = {
            other: _connect(process, other, addresses[other]["address"], notes[other]["key"])
            for other in range(process.index)
        }
        connections |= waiting.all(deadline)
    descriptions = [Description(note["agreed"], note["cores"]) for note in notes]
    return Roster(process.index, descriptions, _links(process, connections))


def _links(process: Process, connections: Mapping[int, Connection]) -> Links:
    return Links(process.index, connections, process.timeout, process.late_timeout)


class _Board:
    """What all processes post in the store, each under its number."""

    def __init__(self, process: Process, deadline: float) -> None:
        self._process = process
        self._deadline = deadline

    def _key(self, topic: str, index: int) -> str:
        return f"neuronjax/{self._process.generation}/{topic}/{index}"

    def post(self, topic: str, note: dict[str, Any]) -> None:
        self._process.store.put(self._key(topic, self._process.index), json.dumps(note))

    def read(self, topic: str, otherwise: str) -> list[dict[str, Any]]:
        """The notes of all processes; a ``PeerError`` names those that did not come."""
        notes: list[dict[str, Any]] = []
        missing: list[int] = []
        for index in range(self._process.count):
            left = max(0.001, self._deadline - time.monotonic())
            text = self._process.store.get(self._key(topic, index), left)
            if text is None:
                missing.append(index)
            else:
                notes.append(json.loads(text))
        if missing:
            raise PeerError(
                f"{_list(missing)} of {self._process.count} {otherwise} within "
                f"{self._process.timeout:g} seconds. Look at the log there, or wait longer "
                "(NEURONJAX_PEER_TIMEOUT, in seconds)."
            )
        return notes


def _list(processes: Sequence[int]) -> str:
    listed = ", ".join(map(str, processes))
    return f"process {listed}" if len(processes) == 1 else f"each of processes {listed}"


def _agree(process: Process, own: Description, notes: Sequence[Mapping[str, Any]]) -> None:
    """Every process compares all with the first, so that all see the same difference."""
    first = notes[0]["agreed"]
    for index, note in enumerate(notes):
        for what in first | note["agreed"]:
            expected, said = first.get(what, "unknown"), note["agreed"].get(what, "unknown")
            if said != expected:
                raise PeerError(
                    f"processes disagree about the {what}: it is {expected} on process 0 and "
                    f"{said} on process {index}. Start all {process.count} with the same."
                )


def _machine_id() -> str:
    """A text that differs between machines."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def _own_address() -> str:
    """The address of this machine that its default route leaves from; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation: RFC 5737
            return probe.getsockname()[0]
        except OSError:
            return socket.gethostbyname(socket.gethostname())


def _listener(address: str, count: int, key: str) -> Listener:
    try:
        return Listener((address, 0), backlog=count, authkey=bytes.fromhex(key))
    except OSError as error:
        raise PeerError(f"no port can be opened on {address}: {error}") from None


def _connect(process: Process, other: int, address: Sequence[Any], key: str) -> Connection:
    try:
        connection = Client((address[0], address[1]), authkey=bytes.fromhex(key))
        connection.send_bytes(str(process.index).encode())
    except (OSError, EOFError, AuthenticationError) as error:
        raise PeerError(
            f"process {process.index} cannot reach process {other} at {address[0]}:{address[1]}: "
            f"{error or type(error).__name__}. Look at the log there, and at firewalls in between."
        ) from None
    return connection


class _Accepting:
    """Takes the connections of some processes on a thread."""

    def __init__(self, listener: Listener, awaited: Iterable[int]) -> None:
        self._listener = listener
        self._awaited = set(awaited)
        self._connections: dict[int, Connection] = {}
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while self._awaited - self._connections.keys():
            try:
                connection = self._listener.accept()
                index = int(connection.recv_bytes(16))
            except (AuthenticationError, EOFError, ValueError):
                continue  # somebody else
            except OSError:
                return
            self._connections[index] = connection

    def all(self, deadline: float) -> dict[int, Connection]:
        """The connections by process, when all are there."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        missing = sorted(self._awaited - self._connections.keys())
        if missing:
            raise PeerError(f"{_list(missing)} did not connect in time; look at the log there.")
        return self._connections
