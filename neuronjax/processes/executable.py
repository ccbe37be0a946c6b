"""A program that runs on the cores of several processes: this process's part of it."""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from neuronjax.errors import SerializationError
from neuronjax.hlo.module import TensorSpec
from neuronjax.host.client import HostClient, HostExecutable, Placement
from neuronjax.processes.links import Links
from neuronjax.processes.meeting import Meetings
from neuronjax.processes.rewrite import separate


class SharedRuns:
    """The runs of a program that other processes run with this one: its ``PartOfProgram``."""

    def __init__(self, links: Links, numbers: Iterator[int], has_callbacks: bool) -> None:
        self._links = links
        self._numbers = numbers
        self._has_callbacks = has_callbacks

    def begin(self) -> int:
        """The number of the run that begins, modulo 2^32: the program's last argument.

        Raises:
          PeerError: the processes can no longer work together.
        """
        self._links.check()
        return next(self._numbers) % (1 << 32)

    def serialize(self) -> bytes:
        """Nothing: another process has other ranks, and compiles its own part of the program."""
        if self._has_callbacks:
            raise SerializationError(
                "programs with host callbacks cannot be stored: their Python functions stay here."
            )
        return b""


class SharedPrograms:
    """Compiles programs that several processes run."""

    def __init__(self, host: HostClient, links: Links) -> None:
        self._host = host
        self._links = links
        self._runs: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
        """Numbers of runs by fingerprint: a program may be loaded several times, and threads load
        it in any order, but its n-th run is the n-th everywhere."""

    def compile(
        self,
        name: str,
        ids: Sequence[int],
        owners: Sequence[int],
        module: bytes,
        placement: Placement,
        results: Sequence[TensorSpec],
        options: dict[str, Any],
        callbacks: Sequence[Callable[..., Any]],
    ) -> HostExecutable:
        """Compiles this process's part of a per-core program.

        ``ids[r]`` and ``owners[r]`` are the device and the process of rank r;
        ``placement`` has the cores of this process's ranks, in their order.

        Raises:
          CompileError, UnsupportedProgramError: as ``HostClient.compile``.
        """
        ranks = [rank for rank, owner in enumerate(owners) if owner == self._links.index]
        code, collectives, digest = separate(module, ranks, len(owners), len(callbacks))
        fingerprint = hashlib.sha256(f"{digest} {list(ids)}".encode()).hexdigest()
        title = f"program {name} ({fingerprint[:12]})"
        meetings = Meetings(title, collectives, owners, self._links)
        functions = [*callbacks, *meetings.callbacks()]
        own = self._host.compile(code, placement, results, options, functions)
        own.part = SharedRuns(self._links, self._runs[fingerprint], bool(callbacks))
        return own
