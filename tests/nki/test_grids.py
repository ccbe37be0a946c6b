"""Kernels whose programs run on the two physical cores of a logical core."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest

from neuronjax import nki
from neuronjax.emulate import core
from neuronjax.errors import KernelError, RaceError
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from tests.nki.kernels import loaded

X = np.random.default_rng(0).standard_normal((1024, 64), np.float32)
ORDERS = [
    None, core.DataflowOrder(seed=1), core.DataflowOrder(seed=2, adversarial=True),
]  # fmt: skip


@nki.jit
def shared_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Every program does its part of the rows, and writes its number."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    who = nl.ndarray((nl.num_programs(), 1), nl.int32, buffer=nl.shared_hbm)
    kept = nl.ndarray((128, x.shape[1]), x.dtype, buffer=nl.private_hbm)
    tiles = x.shape[0] // 128 // nl.num_programs()
    for tile in nl.affine_range(tiles):
        place = nl.ds(128 * (tile + tiles * nl.program_id(0)), 128)
        result = loaded(x[place])
        nisa.tensor_scalar(result, result, nl.multiply, 2.0 + nl.program_id(0))
        nisa.dma_copy(kept, result)
        nisa.dma_copy(out[place], loaded(kept))
    nisa.dma_copy(who[nl.ds(nl.program_id(0), 1)], nl.full((1, 1), nl.program_id(0), nl.int32))
    return out, who


GRIDS = {"none": (), "1": 1, "2": 2, "tuple": (2,), "nc": nl.nc(2), "two dimensions": (2, 1)}


@pytest.mark.parametrize("order", ORDERS, ids=["program", "dataflow", "adversarial"])
@pytest.mark.parametrize("grid", GRIDS)
def test_programs_share_the_work(grid: str, order: core.Order | None) -> None:
    kernel = shared_rows[GRIDS[grid]] if GRIDS[grid] else shared_rows
    out, who = nki.simulate(kernel, order)(X)
    programs = int(np.prod(GRIDS[grid] or 1))
    factors = np.repeat(2 + np.arange(programs), 1024 // programs)[:, None]
    np.testing.assert_array_equal(out, X * factors.astype(np.float32))
    np.testing.assert_array_equal(who, np.arange(programs)[:, None])


def test_two_cores_are_faster_and_run_within_jit() -> None:
    alone, both = (nki.benchmark(shared_rows[cores], X).total_ns for cores in (1, 2))
    assert both < 0.8 * alone
    out, _ = jax.jit(shared_rows[2])(X)
    np.testing.assert_array_equal(out[:512], 2 * X[:512])


@nki.jit
def overlapping(x: Tensor, shift: int = 0) -> Tensor:
    """Both programs write the rows in the middle; with a shift, other values."""
    out = nl.ndarray((192, x.shape[1]), x.dtype, buffer=nl.shared_hbm)
    first = 64 * nl.program_id(0)
    rows = x[nl.ds(first + shift * nl.program_id(0), 128)]
    nisa.dma_copy(out[nl.ds(first, 128)], loaded(rows))
    return out


@nki.jit
def exchanged(x: Tensor) -> Tensor:
    """Every program reads what the other one writes, and nobody waits."""
    out = nl.ndarray((256, x.shape[1]), x.dtype, buffer=nl.shared_hbm)
    rows = [nl.ds(128 * number, 128) for number in (nl.program_id(0), 1 - nl.program_id(0))]
    nisa.dma_copy(out[rows[0]], loaded(x[:128]))
    loaded(out[rows[1]])
    return out


@nki.jit
def differing(x: Tensor) -> Tensor:
    return nl.ndarray((128, 1 + nl.program_id(0)), x.dtype, buffer=nl.shared_hbm)


SAME = r"test_grids.py:\d+.*: {} the same elements of HBM, in .*, as .*\.py:\d+: "


def test_what_programs_of_a_grid_must_not_do() -> None:
    with pytest.raises(
        KernelError,
        match=SAME.format("touches"),
    ):
        nki.simulate(exchanged[2])(X)
    with pytest.raises(KernelError, match=r"test_grids.py:\d+: program 1 .*declare the same"):
        nki.simulate(differing[2])(X)
    with pytest.raises(
        KernelError, match=r"overlapping\[16\] asks for 16 programs.*has 1 or 2 physical"
    ):
        nki.simulate(overlapping[16])(X)
    with pytest.raises(KernelError, match="trainium1 has 1 physical cores"):
        nki.simulate(overlapping[2], target="trainium1")(X)


@nki.jit
def on_two_axes(x: Tensor) -> Tensor:
    return loaded(x[nl.ds(nl.program_id(1), 1)])


def test_axes_that_a_grid_does_not_have() -> None:
    with pytest.raises(
        KernelError, match=r"test_grids.py:\d+: the grid \[2\] has no axis 1; use an"
    ):
        nki.simulate(on_two_axes[2])(X)


def test_programs_that_write_the_same_elements() -> None:
    """A race that the compiler does not refuse: a note says so, and engines' orders report it if
    values differ."""
    (note,) = overlapping[2].trace(X).notes
    assert re.search(
        r"test_grids.py:\d+.*: writes the same elements of HBM, in .*, as .*test_grids.py:\d+", note
    )
    for order in ORDERS:
        np.testing.assert_array_equal(nki.simulate(overlapping[2], order)(X), X[:192])
    for order in ORDERS[1:]:
        with pytest.raises(RaceError, match=r"test_grids.py:\d+"):
            nki.simulate(overlapping[2], order)(X, 1)


@nki.jit
def rows_named_by_registers(x: Tensor, starts: Tensor) -> Tensor:
    """Every program reads rows from its own entry of `starts` on."""
    out = nl.ndarray((256, x.shape[1]), x.dtype, buffer=nl.shared_hbm)
    register = nisa.register_alloc()
    nisa.register_load(register, loaded(starts[nl.ds(nl.program_id(0), 1)]))
    rows = loaded(x[nl.ds(register, 128)])
    nisa.dma_copy(out[nl.ds(128 * nl.program_id(0), 128)], rows)
    return out


@pytest.mark.parametrize("order", ORDERS, ids=["program", "dataflow", "adversarial"])
def test_every_program_has_its_registers(order: core.Order | None) -> None:
    starts = np.array([[300], [7]], np.int32)
    result = nki.simulate(rows_named_by_registers[2], order)(X, starts)
    np.testing.assert_array_equal(result, np.concatenate([X[300:428], X[7:135]]))


@nki.jit
def twice_done(x: Tensor) -> Tensor:
    """Both programs write all, and read again what they have written."""
    between = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm)
    out = nl.ndarray((256, 64), nl.float32, buffer=nl.shared_hbm)
    me = nl.program_id(0)
    for half in range(2):
        rows = nl.ds(64 * half, 64)
        nisa.dma_copy(between[rows], loaded(x[rows]))
    nisa.dma_copy(out[nl.ds(128 * me, 128)], loaded(between))
    return out


@pytest.mark.parametrize("order", ORDERS, ids=["program", "dataflow", "adversarial"])
def test_programs_may_read_what_both_have_written(order: core.Order | None) -> None:
    assert "results depend on their order unless values agree" in twice_done[2].trace(X).notes[0]
    np.testing.assert_array_equal(nki.simulate(twice_done[2], order)(X), np.tile(X[:128], (2, 1)))
