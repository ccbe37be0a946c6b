"""How fast the emulator runs a product of 2,048² BF16 matrices, beside plain numpy.

python -m tests.nki.emulation_speed

Plain numpy is what a simulator without a program does: for every instruction of the same kernel,
one call of numpy on the tiles that it names, in the kernel's number format (`ml_dtypes`); and the
same with tiles that are widened to FP32 for each product, so that numpy can use BLAS. Both sides
run in one process, in turn; the least of three runs counts (one of products in BF16).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from neuronjax import nki
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from tests.nki.kernels import loaded, tile

SIZE, ROWS, COLUMNS = 2048, 128, 512
RUNS = 3


@nki.jit
def matmul(a: Any, b: Any) -> Any:
    """aᵀ · b."""
    result = nl.ndarray((SIZE, SIZE), a.dtype, buffer=nl.shared_hbm)
    for m in nl.affine_range(SIZE // ROWS):
        lefts = [loaded(a[nl.ds(k, ROWS), nl.ds(m * ROWS, ROWS)]) for k in range(0, SIZE, ROWS)]
        for n in nl.affine_range(SIZE // COLUMNS):
            columns = nl.ds(n * COLUMNS, COLUMNS)
            products = tile((ROWS, COLUMNS), buffer=nl.psum)
            for k, left in enumerate(lefts):
                right = loaded(b[nl.ds(k * ROWS, ROWS), columns])
                nisa.nc_matmul(products, left, right)
            out = tile((ROWS, COLUMNS), a.dtype)
            nisa.tensor_copy(out, products)
            nisa.dma_copy(result[nl.ds(m * ROWS, ROWS), columns], out)
    return result


def plain(a: np.ndarray, b: np.ndarray, widened: Any = None) -> np.ndarray:
    """The kernel's instructions, one call of numpy each; products in `widened`, if it is given."""
    result = np.empty((SIZE, SIZE), a.dtype)
    for m in range(0, SIZE, ROWS):
        lefts = [a[k : k + ROWS, m : m + ROWS].copy() for k in range(0, SIZE, ROWS)]
        for n in range(0, SIZE, COLUMNS):
            products = np.zeros((ROWS, COLUMNS), np.float32)
            for k, left in enumerate(lefts):
                right = b[k * ROWS : (k + 1) * ROWS, n : n + COLUMNS].copy()
                kinds = widened or a.dtype
                products += np.matmul(left.T.astype(kinds), right.astype(kinds))
            result[m : m + ROWS, n : n + COLUMNS] = products.astype(a.dtype)
    return result


def seconds(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((SIZE, SIZE)).astype(ml_dtypes.bfloat16) for _ in range(2))
    traced = matmul.trace(a, b)
    sides: dict[str, Callable[[], Any]] = {
        "emulator": lambda: traced.run([a, b]),
        "numpy, FP32 products": lambda: plain(a, b, np.float32),
        "numpy, BF16 products": lambda: plain(a, b),
    }
    counts = {"numpy, BF16 products": 1}  # takes most of a minute
    times = {
        name: min(seconds(run) for _ in range(counts.get(name, RUNS)))
        for name, run in sides.items()
    }
    for name, spent in times.items():
        print(f"{name:<22} {spent:8.3f} s  {spent / times['emulator']:6.1f} x the emulator's time")


if __name__ == "__main__":
    main()
