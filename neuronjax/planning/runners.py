"""How the points of a sweep are estimated: in turn, side by side in processes, or on a cluster.

A runner takes a function and what it is called with, and yields the number of a call and its
result, in the order in which calls end. The result is ``None`` where a process died over the call.
"""

from __future__ import annotations

import importlib
import multiprocessing
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from queue import SimpleQueue
from typing import Any, TypeVar

import jax

from neuronjax.errors import ConfigurationError

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
Runner = Callable[[Callable[[Asked], Answer], Sequence[Asked]], Iterator[tuple[int, Answer | None]]]

_CONNECT_SECONDS = 10.0


def in_turn(
    call: Callable[[Asked], Answer], asked: Sequence[Asked]
) -> Iterator[tuple[int, Answer]]:
    """Makes one call after the other, in this process."""
    for number, entry in enumerate(asked):
        yield number, call(entry)


def in_processes(count: int) -> Runner[Asked, Answer]:
    """`Processes` that serve one call each, and end with it."""

    def run(
        call: Callable[[Asked], Answer], asked: Sequence[Asked]
    ) -> Iterator[tuple[int, Answer | None]]:
        with Processes(count) as runner:
            yield from runner(call, asked)

    return run


class Processes:
    """A runner with `count` processes of this machine, which serve all of its calls.

    Where a process ends without a result, as for want of memory, the result is ``None``; the others
    go on, with a new process in its place.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._idle: SimpleQueue[ProcessPoolExecutor] = SimpleQueue()

    def __enter__(self) -> Processes:
        for _ in range(self._count):
            self._idle.put(_one_process())
        return self

    def __exit__(self, *error: object) -> None:
        while not self._idle.empty():
            self._idle.get().shutdown()

    def __call__(
        self, call: Callable[[Asked], Answer], asked: Sequence[Asked]
    ) -> Iterator[tuple[int, Answer | None]]:
        def ask(entry: Asked) -> Answer | None:
            process = self._idle.get()
            try:
                return process.submit(call, entry).result()
            except BrokenProcessPool:
                process.shutdown()
                process = _one_process()
                return None
            finally:
                self._idle.put(process)

        threads = ThreadPoolExecutor(self._count)
        try:
            pending = {threads.submit(ask, entry): number for number, entry in enumerate(asked)}
            for future in as_completed(pending):
                yield pending[future], future.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def _one_process() -> ProcessPoolExecutor:
    """A process of its own for calls in turn; it starts with the first."""
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=spawn, initializer=_begin)


def _begin() -> None:
    """Ctrl-C, which all processes of a terminal get, ends this one without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    on_cpu()


def on_ray(address: str) -> Runner[Asked, Answer]:
    """A runner on the Ray cluster at `address`; ``local`` starts one on this machine.

    ConfigurationError: Ray is not installed, or nothing answers there.
    """

    def run(
        call: Callable[[Asked], Answer], asked: Sequence[Asked]
    ) -> Iterator[tuple[int, Answer]]:
        ray = _connect(address)
        task = ray.remote(num_cpus=1)(_call_on_cpu)
        shared = ray.put(call)
        pending = {task.remote(shared, entry): number for number, entry in enumerate(asked)}
        try:
            while pending:
                (done, *_), _ = ray.wait(list(pending))
                yield pending.pop(done), ray.get(done)
        finally:
            ray.shutdown()

    return run


def _connect(address: str) -> Any:
    _check_reachable(address)
    try:
        ray = importlib.import_module("ray")
    except ImportError:
        raise ConfigurationError(
            "--ray needs Ray: pip install ray. Without --ray, this machine does the work."
        ) from None
    try:
        ray.init(address=address, log_to_driver=False)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise ConfigurationError(f"no Ray cluster answers at {address!r}: {error}.") from None
    return ray


def _check_reachable(address: str) -> None:
    """Raises ConfigurationError if nothing listens at HOST:PORT, where Ray would retry for minutes.
    Other addresses, such as ``auto``, are left to Ray."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigurationError(f"no Ray cluster answers at {address!r}: {error}.") from None


def _call_on_cpu(call: Callable[[Asked], Answer], entry: Asked) -> Answer:
    on_cpu()
    return call(entry)


def on_cpu() -> None:
    """Keeps a process that only estimates from starting another platform."""
    jax.config.update("jax_platforms", "cpu")
