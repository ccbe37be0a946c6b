"""Kernels as tutorials and guides describe them, with the times that AWS has measured.

The constants of the timing model are those of `neuronjax validate`: none is fitted to a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import pytest

from neuronjax import nki
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.timing.timeline import Timeline
from neuronjax.timing.validation.points import KERNELS
from tests.nki.kernels import loaded, stored, tile

MOST_ERROR = 0.08
PUBLISHED = {point.name: point.published for point in KERNELS}


@nki.jit
def blocked_matmul(a: Any, b: Any, block: int = 1024) -> Any:
    """aᵀ · b in square blocks, whose sums stay in SBUF: a [K, M], b [K, N] -> [M, N]."""
    (depth, height), width = a.shape, b.shape[1]
    result = nl.ndarray((height, width), a.dtype, buffer=nl.shared_hbm)
    for m in nl.affine_range(height // block):
        for n in nl.affine_range(width // block):
            rows, columns = nl.ds(m * block, block), nl.ds(n * block, block)
            sums = tile((128, block // 128, block))
            nisa.memset(sums, 0.0)
            for k in nl.sequential_range(depth // block):
                parts = [nl.ds(k * block + i, 128) for i in range(0, block, 128)]
                lefts, rights = (
                    [loaded(x[part, own]) for part in parts] for x, own in ((a, rows), (b, columns))
                )
                for row in range(block // 128):
                    for column in range(0, block, 512):
                        products = tile((128, 512), buffer=nl.psum)
                        own = nl.ds(column, 512)
                        for left, right in zip(lefts, rights, strict=True):
                            nisa.nc_matmul(products, left[:, nl.ds(128 * row, 128)], right[:, own])
                        total = sums[:, row, own]
                        nisa.tensor_tensor(total, total, products, nl.add)
            for row in range(block // 128):
                place = nl.ds(m * block + 128 * row, 128)
                out = tile((128, block), a.dtype)
                nisa.tensor_copy(out, sums[:, row])
                nisa.dma_copy(result[place, columns], out)
    return result


@nki.jit
def mamba(delta: Any, u: Any, decay: Any, b: Any, c: Any) -> Any:
    """The tutorial's first version, which loads everything for every state: delta and u
    [channels, T], decay [channels, states], b and c [states, T]."""
    (channels, length), states = delta.shape, decay.shape[1]
    result = nl.ndarray(delta.shape, delta.dtype, buffer=nl.shared_hbm)
    sums = [nl.zeros((128, length), delta.dtype) for _ in range(channels // 128)]
    for state in nl.sequential_range(states):
        for number, total in enumerate(sums):
            rows = nl.ds(128 * number, 128)
            d, x, a = loaded(delta[rows]), loaded(u[rows]), loaded(decay[rows, nl.ds(state, 1)])
            own = nl.ds(state, 1)
            kept, gain, history = tile(d.shape), tile(d.shape), tile(d.shape)
            written, read = (loaded(y[own].ap([[0, 128], [1, length]])) for y in (b, c))
            nisa.activation(kept, nl.exp, d, scale=a)
            nisa.tensor_tensor(gain, d, x, nl.multiply)
            nisa.tensor_tensor(gain, gain, written, nl.multiply)
            nisa.tensor_tensor_scan(history, kept, gain, 0.0, nl.multiply, nl.add)
            nisa.tensor_tensor(history, history, read, nl.multiply)
            nisa.tensor_tensor(total, total, history, nl.add)
    for number, total in enumerate(sums):
        nisa.dma_copy(result[nl.ds(128 * number, 128)], total)
    return result


@nki.jit
def summed(x: Any) -> Any:
    out = loaded(x)
    nisa.tensor_tensor(out, out, out, nl.add)
    return stored(out)


@nki.jit
def passed(x: Any) -> Any:
    out = loaded(x)
    nisa.activation(out, nl.copy, out)
    return stored(out)


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.float32)


Case = tuple[Any, str, tuple[jax.ShapeDtypeStruct, ...], Mapping[str, Callable[[Timeline], float]]]

TOTAL: Callable[[Timeline], float] = lambda time: time.total_ns  # noqa: E731
VECTOR: Callable[[Timeline], float] = lambda time: time.busy_ns["vector"]  # noqa: E731
CASES: dict[str, Case] = {
    "matmul": (
        blocked_matmul,
        "trn2",
        (floats(8192, 4096), floats(8192, 8192)),
        {
            "K1 total": TOTAL,
            "K1 PE": lambda time: time.busy_ns["tensor"],
            "K1 Vector": VECTOR,
            "K1 DMA": lambda time: time.kernels[0].dma_active_ns,
            "K1 MATMULs": lambda time: time.hardware_instructions["tensor"],
        },
    ),
    "mamba": (
        mamba,
        "trn1",
        (floats(256, 512), floats(256, 512), floats(256, 16), floats(16, 512), floats(16, 512)),
        {"K14 total": TOTAL, "K14 Vector": VECTOR},
    ),
    "tensor_tensor": (summed, "trn1", (floats(128, 8192),), {"K6": VECTOR}),
    "activation": (
        passed, "trn1", (floats(128, 8192),), {"K7": lambda time: time.busy_ns["scalar"]}
    ),
}  # fmt: skip


def errors(name: str) -> dict[str, float]:
    """Of the predictions of a kernel, relative."""
    kernel, target, arguments, points = CASES[name]
    time = nki.benchmark(kernel, *arguments, target=target)
    return {point: read(time) / PUBLISHED[point] - 1 for point, read in points.items()}


@pytest.mark.slow
def test_times_of_published_kernels() -> None:
    found = {point: error for name in CASES for point, error in errors(name).items()}
    assert np.mean(np.abs(list(found.values()))) <= MOST_ERROR, found


def test_values_of_the_matmul() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((1024, width), np.float32) for width in (512, 1024))
    result = nki.simulate(blocked_matmul)(a, b, 512)
    np.testing.assert_allclose(result, a.T.astype(np.float64) @ b, atol=1e-3)
