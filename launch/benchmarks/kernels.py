"""What kernels written in NKI cost: a call within `jax.jit`, and the emulation of instructions.

The module imports `nki`, so `launch.emulation.provide_nki` comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import ml_dtypes
import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from launch.benchmarks.paired import Measurement, Thunk, compare, time_pairs
from models.kernels.tiles import loaded, tile

MESH = (2, 2)
SIZE, ROWS, COLUMNS = 2048, 128, 512
"""The sides of square matrices to multiply, and the rows and columns of a tile of the result."""


@nki.jit
def doubled(x: Any) -> Any:
    """2 · x; x [128, F]."""
    y = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    data = loaded(x)
    nisa.tensor_scalar(data, data, nl.multiply, 2.0)
    nisa.dma_copy(dst=y, src=data)
    return y


def call_on_mesh(devices: Sequence[jax.Device]) -> Thunk:
    """A jitted call of `doubled` on each device of a mesh."""
    mesh = jax.make_mesh(MESH, ("x", "y"), (jax.sharding.AxisType.Auto,) * 2, devices=devices)
    split = PartitionSpec("x", "y")
    x = jax.device_put(np.ones((256, 8), np.float32), NamedSharding(mesh, split))
    run = jax.jit(
        jax.shard_map(doubled, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    )
    return lambda: run(x).block_until_ready()


def call_on_one(devices: Sequence[jax.Device]) -> Thunk:
    """A jitted call of `doubled` on the first device."""
    x = jax.device_put(np.ones((128, 4), np.float32), devices[0])
    run = jax.jit(doubled)
    return lambda: run(x).block_until_ready()


def emulations(count: int) -> Thunk:
    """`count` emulations of `doubled`, one after the other, called directly."""
    x = np.ones((128, 4), np.float32)
    traced = doubled.trace(x)

    def run() -> None:
        for _ in range(count):
            traced.run([x])

    return run


def call_overhead(devices: Sequence[jax.Device], repetitions: int) -> dict[str, Measurement]:
    """Seconds of a call of a tiny kernel beyond its emulation, on one device and on a mesh."""
    measure = partial(time_pairs, repetitions=repetitions, warmup=5)
    cases = {"one": (call_on_one, 1), "mesh": (call_on_mesh, len(devices))}
    return {
        name: compare(*measure(call(devices), emulations(count)), how="difference")
        for name, (call, count) in cases.items()
    }


@nki.jit
def product(a: Any, b: Any) -> Any:
    """aᵀ · b in tiles, of square matrices."""
    result = nl.ndarray((SIZE, SIZE), a.dtype, buffer=nl.shared_hbm)
    for m in nl.affine_range(SIZE // ROWS):
        lefts = [loaded(a[nl.ds(k, ROWS), nl.ds(m * ROWS, ROWS)]) for k in range(0, SIZE, ROWS)]
        for n in nl.affine_range(SIZE // COLUMNS):
            columns = nl.ds(n * COLUMNS, COLUMNS)
            sums = tile((ROWS, COLUMNS), buffer=nl.psum)
            for k, left in enumerate(lefts):
                nisa.nc_matmul(sums, left, loaded(b[nl.ds(k * ROWS, ROWS), columns]))
            out = tile((ROWS, COLUMNS), a.dtype)
            nisa.tensor_copy(out, sums)
            nisa.dma_copy(dst=result[nl.ds(m * ROWS, ROWS), columns], src=out)
    return result


def by_instruction(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The kernel's instructions, one call of NumPy each; products are FP32."""
    result = np.empty((SIZE, SIZE), a.dtype)
    for m in range(0, SIZE, ROWS):
        lefts = [a[k : k + ROWS, m : m + ROWS].copy() for k in range(0, SIZE, ROWS)]
        for n in range(0, SIZE, COLUMNS):
            sums = np.zeros((ROWS, COLUMNS), np.float32)
            for k, left in enumerate(lefts):
                right = b[k * ROWS : (k + 1) * ROWS, n : n + COLUMNS].copy()
                sums += np.matmul(left.T.astype(np.float32), right.astype(np.float32))
            result[m : m + ROWS, n : n + COLUMNS] = sums.astype(a.dtype)
    return result


def at_once(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product aᵀ · b by one call of NumPy, computed in FP32."""
    return (a.astype(np.float32).T @ b.astype(np.float32)).astype(a.dtype)


def emulation_speed(repetitions: int) -> dict[str, Measurement]:
    """The times of the emulator and of one product of NumPy, over NumPy by instruction."""
    draw = np.random.default_rng(0).standard_normal
    a, b = (draw((SIZE, SIZE)).astype(ml_dtypes.bfloat16) for _ in range(2))
    traced = product.trace(a, b)
    plain = partial(by_instruction, a, b)
    subjects: dict[str, Thunk] = {
        "emulator": lambda: traced.run([a, b]),
        "at_once": lambda: at_once(a, b),
    }
    return {
        name: compare(*time_pairs(subject, plain, repetitions, warmup=1), how="ratio")
        for name, subject in subjects.items()
    }
