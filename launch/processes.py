"""Training in several processes, one per host: connecting them, and agreeing on values."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from launch.errors import LaunchError, ProcessError
from launch.program import say
from models.errors import ModelsError

Value = TypeVar("Value")

_NOBODY = "coordinator_address should be defined"  # what JAX says outside of any cluster


def join_processes() -> None:
    """Connects to the other processes of this job, if a launcher or a cluster that JAX knows
    (`neuronjax launch`, Slurm, Open MPI, Kubernetes and others) says that there are any.

    Call it before anything is computed. Raises ProcessError if they cannot be reached.
    """
    try:
        jax.distributed.initialize()
    except ValueError as error:
        if _NOBODY not in str(error):
            raise ProcessError(f"the processes of this job cannot connect: {error}") from error
    except RuntimeError as error:
        raise ProcessError(
            f"the processes of this job cannot connect: {error}. Start all of them, and make sure "
            "that the others can reach process 0."
        ) from error


def is_first() -> bool:
    """Whether this process prints and writes files for all."""
    return jax.process_index() == 0


def announce(message: str) -> None:
    """Prints a message to the terminal, once per job."""
    if is_first():
        say(message)


def largest(number: int) -> int:
    """The largest of the numbers that the processes pass in. All processes call this together."""
    if jax.process_count() == 1:
        return number
    return int(np.max(multihost_utils.process_allgather(np.int32(number))))


def whole(arrays: dict[str, Any]) -> dict[str, Any]:
    """The arrays as a process can use them alone: copies in host memory if other processes hold
    parts of them. All processes call this together."""
    if jax.process_count() == 1:
        return arrays
    gather = partial(multihost_utils.process_allgather, tiled=True)
    return {name: gather(arrays[name]) for name in sorted(arrays)}


def done_by_first(function: Callable[[], Value]) -> Value:
    """The result of `function` on the first process, a JSON value, returned on all. All processes
    call this together.

    Raises what `function` raises on the first process, and ProcessError on the others.
    """
    if jax.process_count() == 1:
        return function()
    if not is_first():
        answer = _broadcast(None)
        if "error" in answer:
            raise ProcessError(f"process 0 failed: {answer['error']}")
        value: Value = answer["value"]
        return value
    try:
        value = function()
    except (LaunchError, ModelsError) as error:
        _broadcast({"error": str(error)})
        raise
    _broadcast({"value": value})
    return value


@contextmanager
def death_of_others() -> Iterator[None]:
    """Turns what JAX raises when another process of the job dies into one message."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # the latter in dispatch
        if jax.process_count() == 1 or "UNAVAILABLE" not in str(error):
            raise
        raise ProcessError(str(error).splitlines()[0]) from error


def _broadcast(message: Any) -> Any:
    """What the first process gives, as JSON."""
    text = np.frombuffer(json.dumps(message).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
    buffer = np.zeros(size, np.uint8)
    if is_first():
        buffer[:] = text
    sent = multihost_utils.broadcast_one_to_all(buffer)
    return json.loads(np.asarray(sent).astype(np.uint8).tobytes())
