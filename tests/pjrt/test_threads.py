"""Several threads use the platform at once."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from neuronjax.pjrt.handles import Numbers, Strings
from tests.conftest import RunPython

THREADS, CALLS = 6, 150


def test_threads_do_not_disturb_each_other(neuron_devices: list[jax.Device]) -> None:
    mesh = jax.make_mesh((8,), ("x",), devices=neuron_devices)
    rows = NamedSharding(mesh, P("x"))
    single = jax.jit(lambda x: (x + 1, x * 2))
    sharded = jax.jit(lambda x: x + 1)
    single(jax.device_put(0.0, neuron_devices[0]))
    sharded(jax.device_put(jnp.zeros(8), rows))

    def work(number: int) -> tuple[float, np.ndarray]:
        x = jax.device_put(np.float32(number), neuron_devices[number])
        y = jax.device_put(np.full(8, number, np.float32), rows)
        for _ in range(CALLS):
            x, _ = single(x)
            y = sharded(y)
        return float(x), np.asarray(y)

    gc.collect()
    before = [device.memory_stats()["bytes_in_use"] for device in neuron_devices]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            results = list(pool.map(work, range(THREADS)))
    finally:
        sys.setswitchinterval(interval)
    for number, (x, y) in enumerate(results):
        assert x == number + CALLS
        np.testing.assert_array_equal(y, number + CALLS)
    del results, y
    gc.collect()
    assert [device.memory_stats()["bytes_in_use"] for device in neuron_devices] == before


def test_many_runs_with_collectives_are_enqueued(run_python: RunPython) -> None:
    """In a process of its own: if too many are in flight, XLA:CPU stands still for ever."""
    done = run_python("""
        import jax, numpy as np
        rows = jax.NamedSharding(jax.make_mesh((8,), ("x",)), jax.P("x"))
        x = jax.device_put(np.arange(8, dtype=np.float32), rows)
        step = jax.jit(lambda x: (x + x.mean()) / 2)
        for _ in range(3000):
            x = step(x)
        print(*np.asarray(x)[[0, 7]])
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3.5 3.5\n", "")


def test_collectives_of_many_threads_do_not_wait_for_each_other(run_python: RunPython) -> None:
    """Far more runs than XLA:CPU can have in flight, enqueued in no common order."""
    done = run_python(
        """
        from concurrent.futures import ThreadPoolExecutor
        import jax, numpy as np
        rows = jax.NamedSharding(jax.make_mesh((8,), ("x",)), jax.P("x"))
        mean = jax.jit(lambda x: (x + x.mean()) / 2)
        ones = jax.device_put(np.ones((8, 4), np.float32), rows)
        mean(ones).block_until_ready()

        def work(_):
            x = ones
            for _ in range(50):
                x = mean(x)
            return np.array_equal(x, ones)

        with ThreadPoolExecutor(12) as pool:
            print(*pool.map(work, range(12)))
        """,
        timeout=300,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["True"] * 12)


def test_exit_functions_may_be_run_by_hand(run_python: RunPython) -> None:
    """As tests of chex do; after that JAX makes new clients, on all platforms."""
    done = run_python("""
        import atexit, threading
        import jax, jax.numpy as jnp
        add_one = jax.jit(lambda x: x + 1)
        print(add_one(1.0))
        for _ in range(2):
            atexit._run_exitfuncs()
            print(add_one(2.0))
        thread = threading.Thread(target=lambda: print(add_one(jnp.ones(2)).sum()))
        thread.start()
        thread.join()
    """)
    assert (done.returncode, done.stdout.split(), done.stderr) == (
        0,
        ["2.0", "3.0", "3.0", "4.0"],
        "",
    )


@pytest.mark.parametrize(
    ("kept", "keys"),
    [
        (Numbers(), [(number, number + 1) for number in range(20_000)]),
        (Strings(), [str(number) for number in range(20_000)]),
    ],
)
def test_threads_that_describe_one_thing_get_the_memory_that_is_kept(
    kept: Callable[[Any], Any], keys: list[Any]
) -> None:
    """JAX reads what it was told long after the copy of another thread is gone."""
    start = threading.Barrier(THREADS)

    def work(_: int) -> list[Any]:
        start.wait()
        return [kept(key) for key in keys]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            answers = list(pool.map(work, range(THREADS)))
    finally:
        sys.setswitchinterval(interval)
    assert all(answer == answers[0] for answer in answers)
