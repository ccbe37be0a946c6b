"""Connections to the other processes: tagged messages, signs of life, and what became of a peer.

A thread per peer takes its messages as they come and keeps them until somebody asks for them, so no
process waits because another one is late. Whoever waits for a process that has ended, or gives no
sign of life, gets an error with its number; if an exception ended it, with that, and if that was an
error of this kind, with the first process and its exception.

Signs of life say what their process waits for. Some that wait for each other in different programs
would do so for ever: they get an error with what each waits for.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from neuronjax.errors import ENDS_JOB, PeerError, describe
from neuronjax.processes.deadlock import Tag, Wait, find_cycle

logger = logging.getLogger("neuronjax")

_BEAT_SECONDS = 2.0
"""How often each process gives a sign of life."""
_LATE_SECONDS = 30.0
"""How often the log says that somebody waits for a process that lives."""
_CYCLE_SECONDS = 2 * _BEAT_SECONDS
"""How long a cycle of waits has to stand before it is believed: what the others said last may be as
old as one sign of life."""
_RUNS_KEPT = 1024
"""Runs that are known to have begun."""


class _Cause(NamedTuple):
    """What ended the first process that ended."""

    process: int
    text: str


_BEAT, _END, _MESSAGE = "beat", "end", "message"


@dataclass
class _Peer:
    """Another process, as seen from here."""

    connection: Connection
    lock: threading.Lock = field(default_factory=threading.Lock)
    heard: float = field(default_factory=time.monotonic)
    ended: bool = False
    """Whether it said that it will send nothing more."""
    cause: _Cause | None = None
    """Why it has ended, if not by itself."""
    waits: list[Wait] = field(default_factory=list)
    """What it waits for, as it said last."""


class Links:
    """The connections of one process.

    A peer that gives no sign of life for ``timeout`` seconds counts as dead. One that lives may be
    ``late_timeout`` seconds late: it may compile, or emulate something large.
    """

    def __init__(
        self,
        index: int,
        connections: Mapping[int, Connection],
        timeout: float,
        late_timeout: float,
    ) -> None:
        self.index = index
        self.failure: PeerError | None = None
        self._timeout = timeout
        self._late_timeout = late_timeout
        self._peers = {process: _Peer(connection) for process, connection in connections.items()}
        self._arrived: dict[tuple[int, Tag], deque[list[bytes]]] = {}
        self._waits: dict[int, tuple[int, Tag]] = {}
        self._numbers = itertools.count()
        self._begun: dict[tuple[str, int], None] = {}
        self._cycle: list[Wait] = []
        self._cycle_since = 0.0
        self._cause: _Cause | None = None
        self._changed = threading.Condition()
        self._closing = threading.Event()
        for process, peer in self._peers.items():
            _send_at_once(peer.connection)
            self._start(self._listen, process, peer)
        self._start(self._beat)

    def _start(self, run: Any, *arguments: Any) -> None:
        threading.Thread(
            target=run, args=arguments, name="neuronjax-process-link", daemon=True
        ).start()

    def send(self, process: int, tag: Tag, arrays: Sequence[np.ndarray]) -> None:
        """Sends arrays to a process; returns when they are on their way.

        Raises:
          PeerError: the process has ended.
        """
        self._note_begun(tag)
        self._write(process, [_MESSAGE, tag, len(arrays)], [_octets(array) for array in arrays])

    def receive(self, process: int, tag: Tag, like: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Waits for the arrays that a process sends under a tag.

        Raises:
          PeerError: the process has ended or gives no sign of life.
        """
        key, number = (process, tag), next(self._numbers)
        since = time.monotonic()
        told = 0
        self._note_begun(tag)
        with self._changed:
            self._waits[number] = key
            try:
                while not self._arrived.get(key):
                    waited = time.monotonic() - since
                    self._check_peer(process, tag, waited)
                    if waited > (told + 1) * _LATE_SECONDS:
                        told += 1
                        self._tell_late(process, tag, waited)
                    self._changed.wait(min(1.0, self._late_timeout))
            finally:
                del self._waits[number]
            parts = self._arrived[key].popleft()
            if not self._arrived[key]:
                del self._arrived[key]
        return [
            np.frombuffer(bytearray(part), array.dtype).reshape(array.shape)
            for part, array in zip(parts, like, strict=True)
        ]

    def _note_begun(self, tag: Tag) -> None:
        with self._changed:
            self._begun[tag.whole_run] = None
            if len(self._begun) > _RUNS_KEPT:
                del self._begun[next(iter(self._begun))]

    def _check_peer(self, process: int, tag: Tag, waited: float) -> None:
        """Raises ``PeerError`` if a process will not send what is waited for."""
        self.check()
        peer = self._peers[process]
        if peer.ended:
            first, text = peer.cause or _Cause(process, "")
            ended = f"process {first} has ended" + (f" ({text})" if text else "")
            raise self.fail(f"{ended}, and {tag} waits for it", peer.cause)
        if waited > _BEAT_SECONDS:
            cycle, now = self._find_cycle(), time.monotonic()
            if cycle != self._cycle:
                self._cycle, self._cycle_since = cycle, now
            if cycle and now - self._cycle_since > _CYCLE_SECONDS:
                raise self.fail(
                    f"{', '.join(map(str, cycle))}. All processes must run the same programs, "
                    "compiled for the same shapes, in the same order"
                )
        if waited > self._late_timeout:
            raise self.fail(
                f"process {process} lives, but did not come to {tag} within "
                f"{self._late_timeout:g} seconds. Do all processes run the same programs? "
                "If it is only slow, wait longer (NEURONJAX_LATE_PEER_TIMEOUT, in seconds)"
            )

    def _find_cycle(self) -> list[Wait]:
        waits = {process: peer.waits for process, peer in self._peers.items()}
        own = [Wait(self.index, *key) for key in self._waits.values()]
        return find_cycle(self.index, {**waits, self.index: own}, self._begun)

    def _tell_late(self, process: int, tag: Tag, waited: float) -> None:
        logger.warning(
            "%s on process %d has waited %.0f seconds for process %d, which lives; "
            "the job fails after %g seconds (NEURONJAX_LATE_PEER_TIMEOUT)",
            tag, self.index, waited, process, self._late_timeout,
        )  # fmt: skip

    def check(self) -> None:
        """Raises ``PeerError`` if the processes can no longer work together."""
        if self.failure is not None:
            raise self.failure

    def fail(self, text: str, cause: _Cause | None = None) -> PeerError:
        """Notes that the processes can no longer work together; returns the first such error."""
        with self._changed:
            if self.failure is None:
                self._cause = cause or _Cause(self.index, text)
                self.failure = PeerError(
                    f"{text}. {ENDS_JOB}: end the processes that are left, look at the log of that "
                    "one, and start again, from a checkpoint if there is one."
                )
                if not self._closing.is_set():
                    logger.error("%s", self.failure)
            self._changed.notify_all()
            return self.failure

    def close(self) -> None:
        """Tells the others that this process ends, and what exception ended it."""
        self._closing.set()
        error = getattr(sys, "last_value", None)
        if self._cause is None and error is not None:
            self._cause = _Cause(self.index, describe(error))
        for process in self._peers:
            with contextlib.suppress(PeerError):
                self._write(process, [_END, self._cause], [])

    def _write(self, process: int, header: list[Any], parts: Sequence[Any]) -> None:
        peer = self._peers[process]
        try:
            with peer.lock:
                peer.connection.send_bytes(json.dumps(header).encode())
                for part in parts:
                    peer.connection.send_bytes(part)
        except OSError as error:
            fate = "has ended" if peer.ended else "has died"
            raise self.fail(f"process {process} {fate}") from error

    def _listen(self, process: int, peer: _Peer) -> None:
        try:
            while True:
                kind, *rest = json.loads(peer.connection.recv_bytes())
                if kind == _MESSAGE:
                    tag, count = rest
                    parts = [peer.connection.recv_bytes() for _ in range(count)]
                    with self._changed:
                        key = (process, _tag(tag))
                        self._arrived.setdefault(key, deque()).append(parts)
                        self._changed.notify_all()
                elif kind == _END:
                    with self._changed:
                        peer.cause = _Cause(*rest[0]) if rest[0] else None
                        peer.ended = True
                        self._changed.notify_all()
                elif kind == _BEAT:
                    waits = [Wait(process, awaited, _tag(tag)) for awaited, tag in rest[0]]
                    with self._changed:
                        peer.waits = waits
                peer.heard = time.monotonic()
        except (OSError, EOFError):
            if not peer.ended and not self._closing.is_set():
                self.fail(f"process {process} has died")

    def _beat(self) -> None:
        while not self._closing.wait(_BEAT_SECONDS):
            with self._changed:
                waits = [*self._waits.values()]
            for process, peer in self._peers.items():
                if peer.ended:
                    continue
                with contextlib.suppress(PeerError):
                    self._write(process, [_BEAT, waits], [])
                silent = time.monotonic() - peer.heard
                if silent > self._timeout:
                    self.fail(
                        f"process {process} has given no sign of life for {silent:.0f} seconds"
                    )


def _tag(fields: list[Any]) -> Tag:
    """A tag, read from a message."""
    program, run, collective, part = fields
    return Tag(program, run, collective, tuple(part))


def _octets(array: np.ndarray) -> memoryview:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data


def _send_at_once(connection: Connection) -> None:
    """Small messages must not wait for more."""
    twin = socket.socket(fileno=connection.fileno())
    try:
        twin.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    finally:
        twin.detach()
