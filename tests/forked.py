"""Python processes without the seconds that starting one takes.

`run` is `subprocess.run([sys.executable, ...])`, but its process is forked from one that has
imported JAX and this project, and used neither. Tests of what happens while a process starts, or of
which modules it has, start one of their own.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

from tests import fork_server, quick_compile

PROJECT = Path(__file__).resolve().parents[1]
READ_WHEN_IMPORTED = ("JAX_", "PYTHON")
"""Beginnings of names of variables that a process reads before it does anything."""

IMPORTED_BY_JOBS = ("flax.nnx", "optax", "orbax.checkpoint")
"""What most processes of the tests of models and jobs import beside JAX and this project."""


class Servers:
    """The processes that others are forked from, by what they have read."""

    def __init__(self) -> None:
        #: What the processes forked so far have used.
        self.cpu_seconds = 0.0
        self._started: dict[frozenset[tuple[str, str]], tuple[subprocess.Popen, Connection]] = {}
        atexit.register(self._end)

    def ended(self, request: fork_server.Request) -> int | None:
        """The exit code of a process; None if it took too long, and was killed."""
        connection = self._server(request.environment)
        connection.send(request)
        ended: fork_server.Ended = connection.recv()
        self.cpu_seconds += ended.cpu_seconds
        return ended.code

    def _server(self, environment: Mapping[str, str]) -> Connection:
        needed = frozenset(
            (name, value)
            for name, value in environment.items()
            if name.startswith(READ_WHEN_IMPORTED) and name != "JAX_PLATFORMS"
        )
        if needed not in self._started:
            ours, theirs = Pipe()
            others = IMPORTED_BY_JOBS if quick_compile.is_asked_for() else ()
            serve = f"from tests.fork_server import main; main(*{(theirs.fileno(), *others)})"
            process = subprocess.Popen(
                [sys.executable, "-c", serve],
                env=dict(environment) | {"JAX_PLATFORMS": "neuron,cpu"},
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
            theirs.close()
            self._started[needed] = process, ours
        return self._started[needed][1]

    def _end(self) -> None:
        for process, connection in self._started.values():
            connection.close()
            process.wait()


SERVERS = Servers()


def run(
    words: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path = PROJECT,
    timeout: float = 240,
) -> subprocess.CompletedProcess[str]:
    """What `python *words` prints and returns: `-c CODE`, or `-m MODULE ...`.

    Raises:
        subprocess.TimeoutExpired: after so many seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, name) for name in ("stdout", "stderr")]
        code = SERVERS.ended(
            fork_server.Request(
                words=tuple(words),
                environment=dict(os.environ if env is None else env),
                folder=str(cwd),
                stdout=str(outputs[0]),
                stderr=str(outputs[1]),
                timeout=timeout,
            )
        )
        stdout, stderr = (path.read_text() for path in outputs)
    if code is None:
        raise subprocess.TimeoutExpired([*words], timeout, stdout, stderr)
    return subprocess.CompletedProcess([*words], code, stdout, stderr)
