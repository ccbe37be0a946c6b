"""The process that `tests.forked` forks others from: JAX and this project are imported, no more.

Started with the number of a connection, it answers each request with how the process ended that
it forked for it.
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import select
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from types import ModuleType
from typing import NamedTuple

IMPORTED = (
    "jax.numpy",
    "neuronjax.engine_compiler",
    "neuronjax.jaxlib_api.lowering_rules",
    "neuronjax.nki",
    "neuronjax.pjrt.plugin",
    "neuronjax.runtime.engine",
)
"""What most processes of the tests import."""


class Request(NamedTuple):
    """`python *words` with an environment and folder, and the files for what it prints."""

    words: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    stdout: str
    stderr: str
    timeout: float


class Ended(NamedTuple):
    """How a process ended: its exit code, None if it took too long, and the CPU time it used."""

    code: int | None
    cpu_seconds: float


def serve(connection: Connection, others: Sequence[str]) -> Request:
    """Answers requests; returns one in the process that was forked for it."""
    for name in (*IMPORTED, *others):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    while True:
        try:
            request: Request = connection.recv()
        except EOFError:
            sys.exit()
        pid = os.fork()
        if not pid:
            connection.close()
            return request
        connection.send(_ended(pid, request.timeout))


def _ended(pid: int, timeout: float) -> Ended:
    descriptor = os.pidfd_open(pid)
    in_time, _, _ = select.select([descriptor], [], [], timeout)
    os.close(descriptor)
    if not in_time:
        os.kill(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status) if in_time else None
    return Ended(code, usage.ru_utime + usage.ru_stime)


def become(request: Request) -> None:
    """Gives this process the environment, folder and files of a request."""
    for number, path in enumerate((os.devnull, request.stdout, request.stderr)):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    platforms = request.environment.get("JAX_PLATFORMS") or None
    sys.modules["jax"].config.update("jax_platforms", platforms)


def execute(option: str, what: str, *arguments: str) -> None:
    """What `python -c CODE` and `python -m MODULE` do."""
    sys.path[0] = "" if option == "-c" else os.getcwd()
    if option == "-m":
        sys.argv = [what, *arguments]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return
    sys.argv = ["-c", *arguments]
    main = sys.modules["__main__"] = ModuleType("__main__")
    exec(what, vars(main))


def main(descriptor: int, *others: str) -> None:
    """Serves whoever has the other end of a connection, with `others` imported as well."""
    request = serve(Connection(descriptor), others)
    become(request)
    execute(*request.words)
