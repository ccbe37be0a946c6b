"""Kernels compared with numpy."""

from __future__ import annotations

import numpy as np
import pytest

from neuronjax import nki
from neuronjax.emulate import core
from neuronjax.errors import OutOfBoundsError, UnsupportedProgramError
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor


@nki.jit
def tiled_add(a: Tensor, b: Tensor) -> Tensor:
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    for row in nl.affine_range(a.shape[0] // 128):
        rows = slice(128 * row, 128 * row + 128)
        left = nl.ndarray((128, a.shape[1]), dtype=a.dtype, buffer=nl.sbuf)
        right = nl.ndarray((128, a.shape[1]), dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=left, src=a[rows])
        nisa.dma_copy(dst=right, src=b[rows])
        nisa.tensor_tensor(dst=left, data1=left, data2=right, op=nl.add)
        nisa.dma_copy(dst=out[rows], src=left)
    return out


@pytest.mark.parametrize("order", [None, core.DataflowOrder(seed=1)], ids=["program", "dataflow"])
def test_add(order: core.Order | None) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(384, 96)).astype(np.float32) for _ in range(2))
    np.testing.assert_array_equal(nki.simulate(tiled_add, order)(a, b), a + b)


def test_what_is_not_built_says_so() -> None:
    @nki.jit
    def kernel(x: Tensor) -> Tensor:
        nisa.sparse_matmul(x)
        return x

    with pytest.raises(
        UnsupportedProgramError, match=r"test_kernels.py:\d+: nki.isa.sparse_matmul is not built: "
    ):
        nki.simulate(kernel)(np.zeros((128, 4), np.float32))


def test_an_index_outside_names_the_line() -> None:
    @nki.jit
    def kernel(x: Tensor) -> Tensor:
        return x[0:129]

    with pytest.raises(OutOfBoundsError, match=r"test_kernels.py:\d+: .*128 elements"):
        nki.simulate(kernel)(np.zeros((128, 4), np.float32))


def test_an_error_in_a_helper_names_its_callers() -> None:
    def part(x: Tensor, rows: int) -> Tensor:
        return x[0:rows]

    def parts(x: Tensor) -> Tensor:
        return part(x, 129)

    @nki.jit
    def kernel(x: Tensor) -> Tensor:
        return parts(x)

    code = part.__code__
    lines = [code.co_firstlineno + 1 + 3 * calls for calls in (0, 1)]
    place = f"{code.co_filename}:"
    with pytest.raises(OutOfBoundsError) as raised:
        nki.simulate(kernel)(np.zeros((128, 4), np.float32))
    first, _, last = str(raised.value).partition(" Called from ")
    assert first.startswith(f"{place}{lines[0]}: ")
    assert last == f"{place}{lines[1]}, {place}{lines[1] + 4}."


def test_slices_without_elements() -> None:
    @nki.jit
    def kernel(x: Tensor, last: int = 0) -> Tensor:
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nothing = x[4:4]
        assert nothing.shape == (0, 4)
        nisa.dma_copy(dst=out, src=x)
        if last:
            nisa.dma_copy(dst=out[:0], src=nothing)
        return out

    x = np.ones((8, 4), np.float32)
    np.testing.assert_array_equal(nki.simulate(kernel)(x), x)
    with pytest.raises(
        UnsupportedProgramError, match=r"test_kernels.py:\d+: an operand of shape \(0, 4\) has no"
    ):
        kernel.trace(x, 1)


def test_options_by_their_values() -> None:
    @nki.jit
    def kernel(x: Tensor, mode: nisa.matmul_perf_mode | str) -> Tensor:
        sums = nl.ndarray((16, 16), nl.float32, buffer=nl.psum)
        block = nl.load(x)
        nisa.nc_matmul(sums, block, block, perf_mode=mode)
        nl.store(x, nl.copy(sums))
        return x

    x = np.ones((16, 16), np.float32)
    by_name, by_value = (kernel.trace(x, mode) for mode in (nisa.matmul_perf_mode.none, "none"))
    assert by_name.program == by_value.program
    with pytest.raises(UnsupportedProgramError, match=r"takes no perf_mode='fast'; pass one of"):
        kernel.trace(x, "fast")
