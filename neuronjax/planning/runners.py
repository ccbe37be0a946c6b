"""How the points of a sweep are estimated: in turn, side by side in processes, or on a cluster.

A runner takes a function and what it is called with, and yields the number of a call and its
result, in the order in which calls end.
"""

from __future__ import annotations

import importlib
import multiprocessing
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

import jax

from neuronjax.errors import ConfigurationError

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
Runner = Callable[[Callable[[Asked], Answer], Sequence[Asked]], Iterator[tuple[int, Answer]]]

_CONNECT_SECONDS = 10.0


def in_turn(
    call: Callable[[Asked], Answer], asked: Sequence[Asked]
) -> Iterator[tuple[int, Answer]]:
    """One call after the other, in this process."""
    for number, entry in enumerate(asked):
        yield number, call(entry)


def in_processes(count: int) -> Runner[Asked, Answer]:
    """`count` calls at a time, each in a process of this machine.

    ConfigurationError: a process ended without a result, as for want of memory.
    """

    def run(
        call: Callable[[Asked], Answer], asked: Sequence[Asked]
    ) -> Iterator[tuple[int, Answer]]:
        spawn = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(count, mp_context=spawn, initializer=on_cpu)
        try:
            pending = {pool.submit(call, entry): number for number, entry in enumerate(asked)}
            for future in as_completed(pending):
                yield pending[future], future.result()
        except BrokenProcessPool:
            raise ConfigurationError(
                "a worker died without a result, perhaps because memory ran out. Use fewer "
                "--workers; with --out, finished points are kept."
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    return run


def on_ray(address: str) -> Runner[Asked, Answer]:
    """On the Ray cluster at `address`; ``local`` starts one on this machine.

    ConfigurationError: Ray is not installed, or nothing answers there.
    """

    def run(
        call: Callable[[Asked], Answer], asked: Sequence[Asked]
    ) -> Iterator[tuple[int, Answer]]:
        ray = _connected(address)
        task = ray.remote(num_cpus=1)(_called)
        shared = ray.put(call)
        pending = {task.remote(shared, entry): number for number, entry in enumerate(asked)}
        try:
            while pending:
                (done, *_), _ = ray.wait(list(pending))
                yield pending.pop(done), ray.get(done)
        finally:
            ray.shutdown()

    return run


def _connected(address: str) -> Any:
    _check_reachable(address)
    try:
        ray = importlib.import_module("ray")
    except ImportError:
        raise ConfigurationError(
            "--ray needs Ray: pip install ray. Without it, --workers=N estimates on this machine."
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


def _called(call: Callable[[Asked], Answer], entry: Asked) -> Answer:
    on_cpu()
    return call(entry)


def on_cpu() -> None:
    """Keeps a process that only estimates from starting another platform."""
    jax.config.update("jax_platforms", "cpu")
