"""Everything at once, for a while: does the process live, and does anything stay behind?

python -m tests.pjrt.stress --seconds=600 --threads=8

The work runs in a process of its own under NEURONJAX_STRESS: events come late, finished work looks
unfinished, freed records are watched. Threads compile, run, delete, donate, call back, transfer and
raise; the main thread does the same and is interrupted meanwhile. Prints one line of JSON and ends
with 0 if nothing crashed, failed or stayed behind.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
MOST_MEGABYTES = 20
"""By which resident memory may grow in the last third of the time. In the first two the allocators
of libc and XLA come to the size that the load needs; from then on a leak goes on, and they do not:
ten minutes make tens of thousands of steps per third."""
_GRACE_SECONDS = 120
_DUMP_SECONDS = 60
"""How long after its time the process says where its threads are."""
_INTERRUPT_SECONDS = 0.05, 0.3


def run(
    seconds: float, threads: int, seed: int, native_stubs: bool = True
) -> tuple[dict[str, Any], str]:
    """What the process reports, and what it wrote to standard error.

    The report has the key ``ended``: the exit code, negative for a signal, or ``"hung"``.
    """
    environment = os.environ | {
        "JAX_PLATFORMS": "neuron,cpu",
        "NEURONJAX_TARGET": "trn2.3xlarge",
        "NEURON_LOGICAL_NC_CONFIG": "1",
        "NEURONJAX_LEGALITY": "off",
        "NEURONJAX_STRESS": str(seed),
        "NEURONJAX_NATIVE_STUBS": str(int(native_stubs)),
    }
    flags = (f"--{name}={value}" for name, value in
             {"seconds": seconds, "threads": threads, "seed": seed}.items())  # fmt: skip
    command = [sys.executable, "-m", "tests.pjrt.stress", "--inside", *flags]
    try:
        done = subprocess.run(
            command, env=environment, cwd=PROJECT, capture_output=True, text=True,
            timeout=seconds + _GRACE_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return {"ended": "hung"}, (error.stderr or b"").decode(errors="replace")
    lines = done.stdout.splitlines()
    report = json.loads(lines[-1]) if lines else {}
    return report | {"ended": done.returncode}, done.stderr


class Work:
    """What threads do; every function is one step and checks its result."""

    def __init__(self) -> None:
        import jax
        import numpy as np

        self.jax, self.np = jax, np
        devices = jax.devices("neuron")
        self.devices = devices
        self.rows = jax.NamedSharding(jax.make_mesh((8,), ("x",), devices=devices), jax.P("x"))
        self.add = jax.jit(lambda x: (x + 1, x.sum()))
        self.donating = jax.jit(lambda x: x * 2, donate_argnums=0)
        self.mean = jax.jit(lambda x: (x + x.mean()) / 2)
        shape = jax.ShapeDtypeStruct((4,), np.float32)
        self.calling = jax.jit(lambda x: jax.pure_callback(np.negative, shape, x))
        self.failing = jax.jit(lambda x: jax.pure_callback(_refuse, shape, x))
        self.steps: tuple[Callable[[random.Random], None], ...] = (
            self.run_on_one_core, self.run_on_all_cores, self.donate, self.delete, self.call_back,
            self.fail, self.transfer, self.copy, self.compile, self.drop_pending, self.unwind,
        )  # fmt: skip

    def _single(self, chance: random.Random) -> Any:
        return self.jax.device_put(
            self.np.arange(4, dtype=self.np.float32), chance.choice(self.devices)
        )

    def _sharded(self) -> Any:
        return self.jax.device_put(self.np.ones((8, 4), self.np.float32), self.rows)

    def run_on_one_core(self, chance: random.Random) -> None:
        x = self._single(chance)
        for _ in range(20):
            x, _ = self.add(x)
        self.np.testing.assert_array_equal(x, self.np.arange(4) + 20)

    def run_on_all_cores(self, chance: random.Random) -> None:
        x = self._sharded()
        for _ in range(5):
            x = self.mean(x)
        self.np.testing.assert_array_equal(x, 1)

    def donate(self, chance: random.Random) -> None:
        x = self._sharded() if chance.random() < 0.5 else self._single(chance)
        y = self.donating(self.donating(x))
        assert x.is_deleted()
        assert self.np.asarray(y).max() == (4 if y.ndim == 2 else 12)

    def delete(self, chance: random.Random) -> None:
        x, total = self.add(self._single(chance))
        x.delete()
        assert x.is_deleted()
        assert float(total) == 6

    def call_back(self, chance: random.Random) -> None:
        x = self._single(chance)
        self.np.testing.assert_array_equal(self.calling(x), -self.np.arange(4))

    def fail(self, chance: random.Random) -> None:
        with contextlib.suppress(self.jax.errors.JaxRuntimeError):
            self.failing(self._single(chance)).block_until_ready()
            raise AssertionError("a failed callback was not reported")

    def transfer(self, chance: random.Random) -> None:
        value = self.np.full((chance.randrange(1, 200), 8), 3, self.np.int32)
        x = self.jax.device_put(value, chance.choice(self.devices))
        x.copy_to_host_async()
        self.np.testing.assert_array_equal(self.jax.device_get(x), value)

    def copy(self, chance: random.Random) -> None:
        x = self.jax.device_put(self._single(chance), chance.choice(self.devices))
        y = self.jax.device_put(self._sharded(), chance.choice(self.devices))
        assert float(x[3]) == 3
        assert self.np.asarray(y).sum() == 32

    def compile(self, chance: random.Random) -> None:
        number = chance.random()
        if number < 0.2:  # compiling takes a hundred times as long as the rest
            function = self.jax.jit(lambda x: x * 2 - number)
            x = function(self._single(chance))
            self.np.testing.assert_allclose(x, self.np.arange(4) * 2 - number, rtol=1e-6)
            function.clear_cache()

    def drop_pending(self, chance: random.Random) -> None:
        x = self._sharded()
        for _ in range(3):
            self.mean(x)
        del x

    def unwind(self, chance: random.Random) -> None:
        """Arrays die while an exception is on its way."""
        x = self._single(chance)
        try:
            [self.add(x), self.add(x), _refuse(self.add(x))]
        except ValueError:
            return
        raise AssertionError("an exception was lost")


def _refuse(value: Any) -> Any:
    raise ValueError("refused")


def _repeat(work: Work, seed: int, until: float, done: Counter[str], failures: list[str]) -> None:
    chance = random.Random(seed)
    while time.monotonic() < until and not failures:
        step = chance.choice(work.steps)
        try:
            step(chance)
            done[step.__name__] += 1
        except KeyboardInterrupt:
            done["interrupts"] += 1
        except Exception as error:
            failures.append(f"{step.__name__}: {type(error).__name__}: {str(error)[:500]}")


def _interrupt(until: float, seed: int) -> None:
    chance = random.Random(seed)
    while True:
        time.sleep(chance.uniform(*_INTERRUPT_SECONDS))
        if time.monotonic() > until - 1:
            return
        os.kill(os.getpid(), signal.SIGINT)


def _during(work: Work, seconds: float, threads: int, seed: int, failures: list[str]) -> Counter:
    """Steps done by all threads within so many seconds."""
    until = time.monotonic() + seconds
    counts = [Counter[str]() for _ in range(threads)]
    others = [
        threading.Thread(target=_repeat, args=(work, seed + index, until, count, failures))
        for index, count in enumerate(counts[1:], 1)
    ]
    if seconds > 2:
        others.append(threading.Thread(target=_interrupt, args=(until, seed)))
    for thread in others:
        thread.start()
    while time.monotonic() < until and not failures:
        with contextlib.suppress(KeyboardInterrupt):  # one that came between two steps
            _repeat(work, seed, until, counts[0], failures)
    for thread in others:
        thread.join()
    return sum(counts, Counter())


def _live(plugin: Any) -> Counter[str]:
    time.sleep(0.2)  # events under way
    for _ in range(3):
        gc.collect()
    return plugin.live_handles()


def _megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def inside(seconds: float, threads: int, seed: int) -> int:
    """The work itself; prints the report and returns the exit code."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(seconds + _DUMP_SECONDS)
    logging.getLogger("jax._src.callback").setLevel(logging.CRITICAL)  # failures are wanted
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from neuronjax.pjrt import plugin

    work = Work()
    state = plugin.tables()[0].plugin
    failures: list[str] = []
    for step in work.steps:
        step(random.Random(seed))
    done, live, megabytes = Counter[str](), list[Counter[str]](), list[float]()
    for part in range(3):
        done += _during(work, seconds / 3, threads, seed + part * threads, failures)
        live.append(_live(state))
        megabytes.append(_megabytes())
    left, growth = live[-1], [after - before for before, after in pairwise(megabytes)]
    left.subtract(live[0])
    leaked = {kind: count for kind, count in left.items() if count > 0 and "State" not in kind}
    state.handles.inspect()
    report = {
        "seed": seed, "steps": sum(done.values()), "by_kind": dict(done), "failures": failures,
        "leaked": leaked, "megabytes": [round(number, 1) for number in growth],
    }  # fmt: skip
    print(json.dumps(report), flush=True)
    return int(bool(failures or leaked or growth[-1] > MOST_MEGABYTES))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--native_stubs", type=int, default=1)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        return inside(asked.seconds, asked.threads, asked.seed)
    report, errors = run(asked.seconds, asked.threads, asked.seed, bool(asked.native_stubs))
    print(json.dumps(report))
    if report["ended"] != 0:
        print(errors[:6000], file=sys.stderr)
    return int(report["ended"] != 0)


if __name__ == "__main__":
    sys.exit(main())
