"""What the benchmarks measure in a process of its own: `python -m launch.benchmarks.child WHAT`.

The last line of the output is one JSON object of numbers. The environment chooses the platform.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

STARTED = time.perf_counter()  # before anything heavy is imported

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

_WARMUP_CALLS = 1_000
_MLP_WIDTHS = (64, 256, 64)
_MLP_STEPS = 3
_COLLECTIONS = 3
_BF16_STEPS = 15
_ROUNDED = 1 << 22
_ROUNDING_FORMATS = ("bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float8_e3m4")


def first_jit(arguments: argparse.Namespace) -> dict[str, float]:
    """Imports jax, jits and runs one function; its whole process is what gets timed."""
    jax.jit(lambda x: x + 1)(1.0).block_until_ready()
    return {"seconds": time.perf_counter() - STARTED}


def bystander(arguments: argparse.Namespace) -> dict[str, float]:
    """CPU seconds until JAX has its devices; with ``--alone`` it looks for plugins in vain."""
    if arguments.alone:
        search = metadata.entry_points
        metadata.entry_points = lambda **group: search(**group) and ()  # type: ignore[assignment]
    start = time.process_time()
    jax.devices()
    return {"seconds": time.process_time() - start}


def many_cores(arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds until all devices are there, and of compiling and stepping an MLP on all of them."""
    devices = jax.devices()
    start = time.perf_counter() - STARTED
    mesh = jax.make_mesh((len(devices),), ("data",), devices=devices)
    shapes = pairwise(_MLP_WIDTHS)
    random = np.random.default_rng(0)
    weights = [random.normal(0, 0.1, shape).astype(np.float32) for shape in shapes]
    weights = jax.device_put(weights, NamedSharding(mesh, PartitionSpec()))
    batch = random.normal(size=(len(devices), _MLP_WIDTHS[0])).astype(np.float32)
    batch = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        return ((jax.nn.relu(x @ weights[0]) @ weights[1] - x) ** 2).mean()

    @jax.jit
    def step(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
        gradients = jax.grad(loss)(weights, x)
        return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]

    seconds = []
    for _ in range(1 + _MLP_STEPS):
        began = time.perf_counter()
        weights = jax.block_until_ready(step(weights, batch))
        seconds.append(time.perf_counter() - began)
    return {
        "devices": len(devices),
        "start": start,
        "first_step": seconds[0],
        "step": float(np.median(seconds[1:])),
    }


def growth(arguments: argparse.Namespace) -> dict[str, float]:
    """MB by which resident memory grows over `--calls` calls, each with a fresh argument."""
    add_one = jax.jit(lambda x: x + 1)
    host = np.arange(1024, dtype=np.float32)

    def call(times: int) -> float:
        for _ in range(times):
            np.asarray(add_one(jax.device_put(host)))
        gc.collect()
        return _resident_megabytes()

    before = call(_WARMUP_CALLS)
    return {"megabytes": call(arguments.calls) - before}


def loading(arguments: argparse.Namespace) -> dict[str, float]:
    """Peak memory while a checkpoint is loaded, in sizes of the model, beyond what was there."""
    module = importlib.import_module("launch.benchmarks.loading")
    devices = jax.devices()[: module.MODEL_AXIS]
    first_jit(arguments)
    peaks = module.peak_memory(lambda: module.load(Path(arguments.directory), devices))
    size = sum(file.stat().st_size for file in Path(arguments.directory).glob("*.safetensors"))
    return {name: peak / size for name, peak in peaks.items()}


def loading_seconds(arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds of `--row`, a key of `loading.SIDES`, done once, with memory at hand."""
    module = importlib.import_module("launch.benchmarks.loading")
    devices = jax.devices()[: module.MODEL_AXIS]
    first_jit(arguments)
    directory = Path(arguments.directory)
    module.touch_memory(sum(file.stat().st_size for file in directory.glob("*.safetensors")))
    began = time.perf_counter()
    result = module.SIDES[arguments.row](directory, devices)
    seconds = time.perf_counter() - began
    del result
    return {"seconds": seconds}


def handles(arguments: argparse.Namespace) -> dict[str, float]:
    """Objects the plugin holds more of once a workload is gone than after the one before it."""
    _workload()
    tables = importlib.import_module(arguments.module).tables

    def count() -> Counter[str]:
        jax.clear_caches()
        for _ in range(_COLLECTIONS):
            gc.collect()
        return sum((table.plugin.live_handles() for table in tables()), Counter())

    before = count()
    _workload()
    left = count() - before
    return {"left": left.total(), **left}


def calls(arguments: argparse.Namespace) -> dict[str, float]:
    """Ratio of `--row`, a key of `calls.PREPARE`, on neuron to the same on cpu."""
    prepare = importlib.import_module("launch.benchmarks.calls").PREPARE[arguments.row]
    paired = importlib.import_module("launch.benchmarks.paired")
    thunks = [prepare(jax.devices(platform)) for platform in ("neuron", "cpu")]
    measured = paired.compare(*paired.time_pairs(*thunks, arguments.calls, 3), how="ratio")
    return {"ratio": measured.value}


def kernels(arguments: argparse.Namespace) -> dict[str, float]:
    """What `--row` of `launch.benchmarks.kernels` measures: value and quartiles of each number."""
    importlib.import_module("launch.emulation").provide_nki()
    module = importlib.import_module("launch.benchmarks.kernels")
    devices = jax.devices()[: math.prod(module.MESH)]
    measured = {
        "call_overhead": lambda: module.call_overhead(devices, arguments.calls),
        "emulation_speed": lambda: module.emulation_speed(arguments.calls),
    }[arguments.row]()
    return {
        f"{name}.{field}": getattr(measurement, field)
        for name, measurement in measured.items()
        for field in ("value", "low", "high")
    }


def bf16_steps(arguments: argparse.Namespace) -> dict[str, float]:
    """Median seconds of the training job's step with BF16 activations."""
    training = importlib.import_module("launch.benchmarks.training")
    step = training.training_step(jax.devices(), precision="mixed_precision")
    return {"seconds": _nanoseconds(lambda _: step(), jax.numpy.zeros(()), _BF16_STEPS) / 1e9}


def rounding(arguments: argparse.Namespace) -> dict[str, float]:
    """ns per element from FP32 to each narrow dtype; stochastic draws its random bits too.

    The median of `--calls` calls.
    """
    formats, module = (
        importlib.import_module(f"{arguments.module}.{name}") for name in ("formats", "rounding")
    )
    x = jax.device_put(np.random.default_rng(0).standard_normal(_ROUNDED, dtype=np.float32))
    seed = jax.numpy.zeros(1, jax.numpy.uint32)

    def nearest(x: jax.Array, form: Any) -> jax.Array:
        return module.nearest(module.JAX, x, form).astype(form.dtype)

    def stochastic(x: jax.Array, form: Any) -> jax.Array:
        counter = jax.lax.iota(jax.numpy.uint32, x.size)
        random = module.random_bits(module.JAX, counter, seed)
        return module.stochastic(module.JAX, x, random, form).astype(form.dtype)

    nanoseconds = {}
    for name in _ROUNDING_FORMATS:
        for mode in (nearest, stochastic):
            rounded = jax.jit(partial(mode, form=formats.format_named(name)))
            nanoseconds[f"{name} {mode.__name__}"] = (
                _nanoseconds(rounded, x, arguments.calls) / _ROUNDED
            )
    return nanoseconds


def _nanoseconds(function: Callable[[jax.Array], Any], x: jax.Array, calls: int) -> float:
    """Median time of a call, after the first."""
    seconds = []
    for _ in range(1 + calls):
        began = time.perf_counter()
        jax.block_until_ready(function(x))
        seconds.append(time.perf_counter() - began)
    return 1e9 * float(np.median(seconds[1:]))


def _workload() -> None:
    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    split = NamedSharding(mesh, PartitionSpec("x"))
    x = jax.device_put(np.arange(8.0 * jax.device_count(), dtype=np.float32), split)
    jax.block_until_ready(jax.jit(lambda x: (x + 1, x.sum(), x[::2]))(x))


def _resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


TASKS = {
    task.__name__: task
    for task in (
        first_jit,
        bystander,
        many_cores,
        calls,
        kernels,
        growth,
        loading,
        loading_seconds,
        handles,
        bf16_steps,
        rounding,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument(
        "--calls", type=int, default=10_000, help="number of calls to make or to time"
    )
    parser.add_argument("--module", help="module or package of the backend that the task inspects")
    parser.add_argument("--alone", action="store_true", help="run without any JAX plugin")
    parser.add_argument("--row", help="what to time")
    parser.add_argument("--directory", help="directory of the checkpoint to load")
    arguments = parser.parse_args()
    print(json.dumps(TASKS[arguments.task](arguments)))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
