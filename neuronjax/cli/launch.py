"""``neuronjax launch``: the processes of a job on this machine, one for each host of the target."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from neuronjax import options
from neuronjax.cli import scripts
from neuronjax.cli.arguments import whole
from neuronjax.errors import ConfigurationError
from neuronjax.machine.hosts import cores_of_process
from neuronjax.machine.machine import Machine

_MOST_HOSTS = 1_000
_PORTS = 1 << 16
_LOOK_SECONDS = 0.05
_LAST_WORDS_SECONDS = 15.0
"""Time for the other processes to report a process's failure themselves: they may be compiling."""
_END_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL after that."""
_GRACE_SECONDS = 30.0
"""Time for all processes to end after a signal to the launcher, as long as Kubernetes'."""
_REPORTS_BYTES = 1 << 16
"""What a pipe holds."""
_LOOPBACK = "127.0.0.1"

DESCRIPTION = """\
Runs a script in several processes on this machine, as a cluster would on as many hosts: each has
the chips of one instance, or of one instance of an UltraServer. The script calls
jax.distributed.initialize() without arguments, and everything else is as on several machines:
jax.devices() has the cores of all processes, jax.local_devices() those of one.

Lines of output begin with the number of their process; --logs also writes them to files. When a
process ends with an error, the others are ended, and the command says which one failed.

Example: neuronjax launch --hosts=4 --target=trn2.48xlarge train.py --steps=20
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    hosts, ports = whole(1, _MOST_HOSTS), whole(1, _PORTS - 1)
    add("--hosts", type=hosts, required=True, metavar="N", help="processes to start")
    add("--target", help="machine, such as trn2.48xlarge (default: as configured)")
    add("--port", type=ports, help="port where process 0 meets the others (default: a free one)")
    add("--logs", type=Path, metavar="FOLDER", help="also write the output to files in this folder")
    scripts.add_arguments(parser)


@dataclass
class _Worker:
    """A process, and the thread that forwards its output."""

    index: int
    process: subprocess.Popen[str]
    reader: threading.Thread

    def describe(self) -> str:
        code = self.process.returncode
        if code < 0:
            return f"process {self.index} was killed by {signal.Signals(-code).name}"
        return f"process {self.index} ended with status {code}"


def run(parsed: argparse.Namespace) -> int:
    switches = {"target": parsed.target} if parsed.target else {}
    chosen = options.load(**switches)
    cores_of_process(Machine.create(chosen.target, chosen.lnc), 0, parsed.hosts)
    scripts.check(parsed.script, parsed.module)
    command = [*(["-m"] if parsed.module else []), parsed.script, *parsed.arguments]
    last_port = (chosen.monitor_port or 0) + parsed.hosts - 1
    if last_port >= _PORTS:
        raise ConfigurationError(
            f"NEURONJAX_MONITOR_PORT={chosen.monitor_port} is the port of process 0 of "
            f"{parsed.hosts}, so the last process would need port {last_port}; choose at most "
            f"{_PORTS - parsed.hosts}."
        )
    with _logs(parsed.logs, parsed.hosts) as logs, _pipe() as lifeline, _pipe() as reports:
        address = f"{_LOOPBACK}:{_port(parsed.port)}"
        workers = [
            _start(
                index,
                parsed.hosts,
                address,
                (lifeline[0], reports[1]),
                command,
                options.environment(chosen.target, index),
                logs[index],
            )
            for index in range(parsed.hosts)
        ]
        return _attend(workers, parsed.logs, reports[0])


def _start(
    index: int,
    count: int,
    address: str,
    pipes: tuple[int, int],
    command: Sequence[str],
    environment: dict[str, str],
    log: IO[str] | None,
) -> _Worker:
    words = [str(word) for word in (*pipes, address, index, count)]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "neuronjax.cli.worker", *words, *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=pipes,
        start_new_session=True,
    )
    assert process.stdout is not None
    reader = threading.Thread(target=_pass_on, args=(index, process.stdout, log), daemon=True)
    reader.start()
    return _Worker(index, process, reader)


def _pass_on(index: int, source: IO[str], log: IO[str] | None) -> None:
    for line in source:
        print(f"[{index}] {line}", end="", flush=True)
        if log is not None:
            log.write(line)
            log.flush()


def _attend(workers: Sequence[_Worker], logs: Path | None, reports: int) -> int:
    """Waits for all processes, and ends them all if one fails or a signal arrives; returns the exit
    code."""
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        _signal(workers, number)

    with _handlers(ask):
        while (failed := _find_failed(workers)) is None and _running(workers):
            if asked and not _wait(workers, _GRACE_SECONDS):
                _end(workers)
            time.sleep(_LOOK_SECONDS)
        if failed is None:
            _read_out(workers)
            return 0
        if not asked:
            _wait(workers, _LAST_WORDS_SECONDS)
        halted = next((worker for worker in workers if _is_halted(worker)), None)
        _end(workers)
    _read_out(workers)
    if asked:
        return 128 + asked[0]
    first, fate = _first_report(reports) or (failed.index, failed.describe())
    if halted is not None:
        first, fate = halted.index, f"process {halted.index} was halted by SIGSTOP or SIGTSTP"
    where = f" Its log: {logs / f'process-{first}.log'}." if logs else ""
    print(f"neuronjax launch: {fate}; the others were stopped.{where}", file=sys.stderr)
    return failed.process.returncode if failed.process.returncode > 0 else 1


def _first_report(reports: int) -> tuple[int, str] | None:
    """The process that an exception of its own ended first, and a text about that."""
    os.set_blocking(reports, False)
    with contextlib.suppress(BlockingIOError):
        index, text = json.loads(os.read(reports, _REPORTS_BYTES).splitlines()[0])
        return index, f"process {index} ended with {text}"
    return None


def _running(workers: Sequence[_Worker]) -> list[_Worker]:
    return [worker for worker in workers if worker.process.poll() is None]


def _is_halted(worker: _Worker) -> bool:
    """Whether a signal halted it: it neither goes on nor ends by itself."""
    if worker.process.returncode is not None:
        return False
    asked = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_PID, worker.process.pid, asked) is not None
    return False


def _find_failed(workers: Sequence[_Worker]) -> _Worker | None:
    """The process that failed; if there are several, one that was killed, as the others follow."""
    bad = [worker for worker in workers if worker.process.poll()]
    return min(bad, key=lambda worker: worker.process.returncode, default=None)


def _wait(workers: Sequence[_Worker], seconds: float) -> bool:
    """Waits until no process goes on, but no longer than `seconds`; whether all have ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if all(map(_is_halted, _running(workers))):
            break
        time.sleep(_LOOK_SECONDS)
    return not _running(workers)


def _end(workers: Sequence[_Worker]) -> None:
    _signal(workers, signal.SIGTERM)
    if not _wait(workers, _END_SECONDS):
        _signal(workers, signal.SIGKILL)


def _signal(workers: Sequence[_Worker], number: int) -> None:
    for worker in _running(workers):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.process.pid, number)


def _read_out(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.process.wait()
        worker.reader.join(_END_SECONDS)


@contextlib.contextmanager
def _handlers(ask: object) -> Iterator[None]:
    """Forwards signals to the processes."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, ask) for number in numbers}  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """The ends of a pipe, to read and to write, that close when this process ends."""
    read, write = os.pipe()
    try:
        yield read, write
    finally:
        os.close(read)
        os.close(write)


@contextlib.contextmanager
def _logs(folder: Path | None, count: int) -> Iterator[list[IO[str] | None]]:
    with contextlib.ExitStack() as stack:
        if folder is None:
            yield [None] * count
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            paths = [folder / f"process-{index}.log" for index in range(count)]
            yield [stack.enter_context(path.open("w", encoding="utf-8")) for path in paths]
        except OSError as error:
            raise ConfigurationError(
                f"--logs={str(folder)!r} cannot be written to: {error.strerror}"
            ) from None


def _port(wanted: int | None) -> int:
    """The requested port, or a free one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOOPBACK, wanted or 0))
        except OSError as error:
            raise ConfigurationError(
                f"--port={wanted} cannot be used on {_LOOPBACK}: {error.strerror}. Leave it out, "
                "or choose one that is free."
            ) from None
        return probe.getsockname()[1]
