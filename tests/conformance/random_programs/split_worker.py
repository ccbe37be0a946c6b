"""As `worker`, with arguments split over eight devices of so many processes:
`python -m tests.conformance.random_programs.split_worker COUNT`.

The process that answers starts the others, and passes every request on to them.
"""

from __future__ import annotations

import pickle
import random
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.conformance.random_programs.worker import answered, serve

_AXES = {"x": 4, "y": 2}


class Split:
    """Answers requests, as do the processes of `followers`."""

    def __init__(self, followers: Sequence[subprocess.Popen[bytes]] = ()) -> None:
        self._followers = followers
        devices = np.array(jax.devices(), dtype=object).reshape(*_AXES.values())
        self._mesh = Mesh(devices, tuple(_AXES))

    def __call__(self, source: str, arguments: list[np.ndarray]) -> list[np.ndarray] | str:
        """What `program` in `source` returns, of arguments that are split in a way of its own."""
        for follower in self._followers:
            assert follower.stdin is not None
            pickle.dump((source, arguments), follower.stdin)
            follower.stdin.flush()
        return answered(source, lambda program: self._results(program, arguments, len(source)))

    def _results(self, program: Any, arguments: list[np.ndarray], seed: int) -> list[np.ndarray]:
        draw = random.Random(seed)
        splits = [NamedSharding(self._mesh, _split(value.shape, draw)) for value in arguments]
        whole = NamedSharding(self._mesh, P())

        def split(*values: jax.Array) -> Any:
            return program(*map(lax.with_sharding_constraint, values, splits))

        given = [jax.make_array_from_callback(value.shape, whole, value.__getitem__)
                 for value in arguments]  # fmt: skip
        results = jax.jit(split, out_shardings=whole)(*given)
        return [np.asarray(each.addressable_data(0)) for each in results]


def _split(shape: tuple[int, ...], draw: random.Random) -> P:
    """Each axis of the mesh splits a dimension that has as many elements, or none."""
    names: list[str | None] = [None] * len(shape)
    for axis, parts in _AXES.items():
        free = [at for at, size in enumerate(shape) if names[at] is None and size >= parts]
        if free and draw.random() < 0.8:
            names[draw.choice(free)] = axis
    return P(*names)


def _follow(count: int, port: int) -> list[subprocess.Popen[bytes]]:
    return [
        subprocess.Popen(
            [sys.executable, "-m", __spec__.name, str(count), str(index), str(port)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        )
        for index in range(1, count)
    ]  # fmt: skip


def main(count: int, index: int = 0, port: int = 0) -> None:
    """Serves as process `index` of `count`; the first one finds a port for the others."""
    if not port:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
    followers = [] if index else _follow(count, port)
    if count > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
    serve(Split(followers))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
