"""Kernels whose two programs wait for each other and exchange tiles."""

from __future__ import annotations

import numpy as np
import pytest

from neuronjax import nki
from neuronjax.emulate import core
from neuronjax.errors import CollectiveError, KernelError, NeuronError, RaceError
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from tests.nki.kernels import loaded

X = np.random.default_rng(0).standard_normal((256, 8), np.float32)
ORDERS = {
    "program": None,
    "dataflow": core.DataflowOrder(seed=1),
    "adversarial": core.DataflowOrder(seed=2, adversarial=True),
}


@nki.jit
def swapped(x: Tensor, has_barrier: bool = True, is_rolled: bool = False) -> Tensor:
    """Rows of the other program, which come by way of HBM, plus those that it sends."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    between = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    me, other = nl.program_id(0), 1 - nl.program_id(0)
    mine, theirs = nl.ds(128 * me, 128), nl.ds(128 * other, 128)
    sent, received = loaded(x[mine]), nl.ndarray((128, x.shape[1]), x.dtype)
    nisa.sendrecv(src=sent, dst=received, send_to_rank=other, recv_from_rank=other, pipe_id=0)
    for _ in nl.sequential_range(1 + is_rolled):
        nisa.dma_copy(between[mine], sent)
    if has_barrier:
        nisa.core_barrier(data=between, cores=(0, 1))
    total = loaded(between[theirs])
    nisa.tensor_tensor(total, total, received, nl.add)
    nisa.dma_copy(out[mine], total)
    return out


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("is_rolled", [False, True])
def test_cores_wait_for_each_other(order: str, is_rolled: bool) -> None:
    result = nki.simulate(swapped[2], ORDERS[order])(X, is_rolled=is_rolled)
    np.testing.assert_array_equal(result, 2 * np.concatenate([X[128:], X[:128]]))


def test_a_missing_barrier_is_seen() -> None:
    with pytest.raises(KernelError, match=r"HBM, in .*test_cores.py:\d+: .* core_barrier"):
        nki.simulate(swapped[2])(X, has_barrier=False)


@nki.jit
def unordered_rounds(x: Tensor, pieces: int) -> Tensor:
    """A barrier orders what is written before it, and not the next round's writes."""
    between = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    mine, theirs = (
        [nl.ds(128 * program + first, 128 // pieces) for first in range(0, 128, 128 // pieces)]
        for program in (nl.program_id(0), 1 - nl.program_id(0))
    )
    for _ in nl.sequential_range(2):
        for rows in mine:
            nisa.dma_copy(between[rows], loaded(x[rows]))
        nisa.core_barrier(between, (0, 1))
        for rows, others in zip(mine, theirs, strict=True):
            nisa.dma_copy(out[rows], loaded(between[others]))
    return out


@pytest.mark.parametrize(("pieces", "error"), [(1, KernelError), (4, RaceError)])
def test_races_behind_barriers_in_loops(pieces: int, error: type[NeuronError]) -> None:
    """Rounds that are written out are compared before the run, others by running them."""

    def simulate_in_ten_orders() -> None:
        for seed in range(10):
            nki.simulate(unordered_rounds[2], core.DataflowOrder(seed=seed))(X, pieces=pieces)

    with pytest.raises(error, match=r"test_cores.py:\d+"):
        simulate_in_ten_orders()


@nki.jit
def lonely(x: Tensor) -> Tensor:
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    mine = nl.ds(128 * nl.program_id(0), 128)
    nisa.dma_copy(out[mine], loaded(x[mine]))
    if nl.program_id(0) == 0:
        nisa.core_barrier(out, (0, 1))
    return out


@pytest.mark.parametrize("order", ORDERS)
def test_a_core_that_waits_alone(order: str) -> None:
    with pytest.raises(CollectiveError, match=r"core 0 at .*test_cores.py:\d+.*Cores \[1\] have"):
        nki.simulate(lonely[2], ORDERS[order])(X)


@nki.jit
def placed(x: Tensor) -> Tensor:
    """Every round uses the same places, of which the kernel says where they are."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for part in nl.affine_range(8):
        rows = nl.ds(32 * part, 32)
        first = nl.ndarray((32, x.shape[1]), x.dtype, address=(0, 1024))
        second = nl.ndarray((32, x.shape[1]), x.dtype, address=(32, 1024))
        between = nl.ndarray(first.shape, nl.float32, nl.psum, address=(0, part % 2 * 2048))
        nisa.dma_copy(first, x[rows])
        nisa.tensor_copy(between, first)
        nisa.tensor_scalar(second, between, nl.multiply, 2.0)
        nisa.dma_copy(out[rows], second)
    return out


@pytest.mark.parametrize("order", ORDERS)
def test_places_by_hand(order: str) -> None:
    np.testing.assert_array_equal(nki.simulate(placed, ORDERS[order])(X), 2 * X)
    tiles = placed.trace(X).program.body[0].buffers
    assert {(tile.partition, tile.address) for tile in tiles} == {
        (0, 1024), (32, 1024), (0, 0), (0, 2048),
    }  # fmt: skip
