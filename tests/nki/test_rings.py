"""Rings whose order the runtime decides, and collectives of uneven sizes, compared with numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from neuronjax import nki
from neuronjax.emulate.core import DataflowOrder, Order, ProgramOrder
from neuronjax.errors import NeuronError
from neuronjax.nki import collectives as ncc
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from tests.nki.kernels import loaded, stored, tile

ALL = ncc.ReplicaGroup([[0, 1, 2, 3]])
TURNED = ncc.ReplicaGroup([[2, 0, 3, 1]])
PAIRS = ncc.ReplicaGroup([[0, 2], [3, 1]])
RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 32, 16), np.float32)
ORDERS = (ProgramOrder(), DataflowOrder(seed=1), DataflowOrder(seed=2, adversarial=True))


def in_hbm(shape: tuple[int, ...], dtype: Any) -> Tensor:
    return nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm)


@nki.jit
def gathered(x: Tensor, group: Any, buffer: Any) -> Tensor:
    """All-gather around a ring, of NKI's reference: what a rank has got goes to the place of the
    rank that it comes from, and on to the next one."""
    count = len(group.groups[0])
    result = in_hbm((4, *x.shape), x.dtype)
    nisa.dma_copy(result.reshape((128, 16)), nl.zeros((128, 16), x.dtype))
    here = nl.ndarray(x.shape, x.dtype, buffer)
    nisa.dma_copy(here, loaded(x))
    for step in range(count):
        rank = ncc.collective_permute_implicit_current_processing_rank_id(step, group)
        nisa.dma_copy(result.select(0, rank), here)
        there = nl.ndarray(x.shape, x.dtype, buffer)
        ncc.collective_permute_implicit([[here]], [[there]], group)
        here = there
    return result


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.private_hbm], ids=["sbuf", "hbm"])
@pytest.mark.parametrize("group", [ALL, TURNED, PAIRS], ids=["all", "turned", "pairs"])
def test_a_ring_brings_what_every_rank_has(group: Any, buffer: Any, order: Order) -> None:
    result = nki.simulate(gathered, order, ranks=4)(X, group, buffer)
    for ranks in group.groups:
        for rank in ranks:
            others = [other for other in range(4) if other not in ranks]
            np.testing.assert_array_equal(result[rank][list(ranks)], X[list(ranks)])
            assert not result[rank][others].any()


@nki.jit
def reduced(x: Tensor, op: Any) -> Tensor:
    """Reduce-scatter around a ring: every rank ends with its own share of the sum."""
    own = in_hbm((8, 16), x.dtype)
    passed = in_hbm((8, 16), x.dtype)
    for step in range(4):
        # What is passed on at this step is the share of the rank that is 3 - step behind.
        rank = ncc.collective_permute_implicit_current_processing_rank_id(step + 1, ALL)
        share = tile((8, 16), x.dtype)
        nisa.dma_copy(share, x.ap([[16, 8], [1, 16]], scalar_offset=rank, indirect_dim=0))
        shares = stored(share)
        if step == 0:
            ncc.collective_permute_implicit([[shares]], [[passed]], ALL)
        elif step < 3:
            received = in_hbm((8, 16), x.dtype)
            ncc.collective_permute_implicit_reduce([[shares]], [[passed]], [[received]], ALL, op)
            passed = received
        else:
            total = tile((8, 16), x.dtype)
            nisa.tensor_tensor(total, share, loaded(passed), op)
            nisa.dma_copy(own, total)
    return own


@pytest.mark.parametrize("op", ["add", "maximum", "minimum"])
def test_a_ring_reduces_shares(op: str) -> None:
    reduction = {"add": np.sum, "maximum": np.max, "minimum": np.min}[op]
    result = nki.simulate(reduced, ranks=4)(X.reshape(4, 4, 8, 16), getattr(nl, op))
    expected = reduction(X.reshape(4, 4, 8, 16).astype(np.float64), axis=0)
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)


def test_channels_have_tensors_of_their_own() -> None:
    def kernel(x: Tensor) -> Tensor:
        sent, got = stored(loaded(x)), in_hbm(x.shape, x.dtype)
        halves = [nl.ds(0, 16), nl.ds(16, 16)]
        ncc.collective_permute_implicit(
            [[sent[half]] for half in halves], [[got[half]] for half in halves], ALL, [0, 1]
        )
        return got

    np.testing.assert_array_equal(nki.simulate(kernel, ranks=4)(X), np.roll(X, 1, axis=0))


def mesh_of_four(devices: list[jax.Device]) -> jax.sharding.Mesh:
    return jax.make_mesh((4,), ("x",), (AxisType.Auto,), devices=devices[:4])


def test_on_a_mesh(neuron_devices: list[jax.Device]) -> None:
    mesh = mesh_of_four(neuron_devices)
    function = jax.shard_map(
        lambda x: gathered(x, ALL, nl.sbuf), mesh=mesh, in_specs=P("x"), out_specs=P("x")
    )
    result = jax.jit(function)(X.reshape(128, 16)).reshape(4, 4, 32, 16)
    np.testing.assert_array_equal(result, np.broadcast_to(X, (4, 4, 32, 16)))


COUNTS = RNG.integers(0, 5, (4, 4))
PLACES = RNG.integers(0, 8, (4, 4))
DATA = RNG.standard_normal((4, 12), np.float32)


def metadata(places: bool) -> np.ndarray:
    """Of each rank: what it sends to others, from where, and where what it gets goes."""
    table = np.zeros((4, 4 if places else 3, 4), np.uint32)
    table[:, 0], table[:, 1] = COUNTS, PLACES
    if places:
        table[:, 3] = [3, 17, 9, 25]
    return table


def exchanged(places: bool, is_same: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """What every rank gets, and how much from each."""
    result, received = np.zeros((4, 40), np.float32), np.zeros((4, 4), np.int64)
    for sender in range(4):
        for receiver in range(4):
            column = 0 if is_same else receiver
            count, begin = COUNTS[sender, column], PLACES[sender, column]
            to = [3, 17, 9, 25][sender] if places else 10 * sender
            result[receiver, to : to + count] = DATA[sender, begin : begin + count]
            received[receiver, sender] = count
    return result, received


@nki.jit
def uneven(
    x: Tensor, table: Tensor, function: Callable[..., None], in_sbuf: bool, known: bool = False
) -> tuple[Tensor, Tensor]:
    """Of each program what it gets, and its counts afterwards."""
    (rows, ranks), programs = table.shape, nl.num_programs()
    result, seen = in_hbm((programs, 40), x.dtype), in_hbm((programs, rows * ranks), table.dtype)
    own = nl.ds(nl.program_id(0), 1)
    source = nl.ndarray((12,), x.dtype, nl.private_hbm)
    nisa.dma_copy(source.reshape((1, 12)), loaded(x.reshape((1, 12))))
    nisa.dma_copy(result[own], nl.zeros((1, 40), x.dtype))
    flat = loaded(table.reshape((1, rows * ranks)))
    counts = flat.reshape((1, rows, ranks))
    if not in_sbuf:
        counts = nl.ndarray((rows, ranks), table.dtype, nl.private_hbm)
        nisa.dma_copy(counts.reshape((1, rows * ranks)), flat)
    into = result[own].reshape((40,))
    function([source], [into], ALL, counts, recv_counts_known=known, has_rdispls=rows == 4)
    nisa.dma_copy(seen[own], flat if in_sbuf else loaded(counts.reshape((1, rows * ranks))))
    return result, seen.reshape((programs, rows, ranks))


UNEVEN: dict[str, tuple[Any, str, Any, bool]] = {
    "all_to_all_v": (uneven, "trn2", ncc.all_to_all_v, False),
    "all_to_all_v with places": (uneven[2], "trn3", ncc.all_to_all_v, True),
    "all_gather_v": (uneven[2], "trn2", ncc.all_gather_v, False),
}


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("in_sbuf", [False, True], ids=["counts in HBM", "counts in SBUF"])
@pytest.mark.parametrize("case", UNEVEN)
def test_sizes_that_the_program_knows(case: str, in_sbuf: bool, order: Order) -> None:
    kernel, target, function, places = UNEVEN[case]
    table = metadata(places)
    simulated = nki.simulate(kernel, order, target, ranks=4)
    result, seen = simulated(DATA, table, function, in_sbuf)
    expected, received = exchanged(places, function is ncc.all_gather_v)
    for program in range(result.shape[1]):
        np.testing.assert_array_equal(result[:, program], expected)
        np.testing.assert_array_equal(seen[:, program, 2], received)
    known = simulated(DATA, table, function, in_sbuf, known=True)
    np.testing.assert_array_equal(known[1][:, 0], table)


def test_sizes_on_a_mesh(neuron_devices: list[jax.Device]) -> None:
    mesh = mesh_of_four(neuron_devices)

    def rank(x: jax.Array, table: jax.Array) -> jax.Array:
        return uneven(x, table.reshape(3, 4), ncc.all_to_all_v, True)[0]

    function = jax.shard_map(rank, mesh=mesh, in_specs=(P("x"), P("x")), out_specs=P("x"))
    result = jax.jit(function)(DATA.reshape(48), metadata(False).reshape(12, 4))
    np.testing.assert_array_equal(result, exchanged(False)[0])


def test_places_that_nothing_comes_to_stay_as_they_are() -> None:
    """Also unwritten: who reads them is told."""

    def kernel(x: Tensor, table: Tensor) -> Tensor:
        result = in_hbm((40,), x.dtype)
        ncc.all_to_all_v([x], [result], ALL, loaded(table.reshape((1, 12))).reshape((1, 3, 4)))
        return result

    result = nki.simulate(kernel, ranks=4)(DATA, metadata(False))
    expected, received = exchanged(False)
    for rank in range(4):
        is_written = np.concatenate([np.arange(10) < count for count in received[rank]])
        np.testing.assert_array_equal(result[rank][is_written], expected[rank][is_written])
        assert np.isnan(result[rank][~is_written]).all()


REFUSED: dict[str, tuple[Callable[[Tensor, Tensor], Any], str]] = {
    "flat channels": (
        lambda x, t: ncc.collective_permute_implicit([t], [t], ALL),
        r"srcs_by_channel=\[a tensor.*pass a list of one tensor for each of the 1 channels",
    ),
    "other channels": (
        lambda x, t: ncc.collective_permute_implicit([[t]], [[t]], ALL, [1]),
        r"channel_ids=\[1\]; pass \[0\], \[0, 1\]",
    ),
    "many channels": (
        lambda x, t: ncc.collective_permute_implicit([[t]] * 5, [[t]] * 5, ALL, list(range(5))),
        "up to 4 channels",
    ),
    "a register as a step": (
        lambda x, t: ncc.collective_permute_implicit_current_processing_rank_id(
            ncc.rank_id(),  # type: ignore[arg-type]
            ALL,
        ),
        "iteration_id=.*pass an integer from 0 on",
    ),
    "no group": (
        lambda x, t: ncc.collective_permute_implicit([[t]], [[t]], [[0, 1]]),  # type: ignore[arg-type]
        "pass a nki.collectives.ReplicaGroup",
    ),
    "no counts": (
        lambda x, t: ncc.all_to_all_v([x], [x], ALL, None),  # type: ignore[arg-type]
        "metadata_tensor=None; pass a tensor of uint32",
    ),
    "counts of another type": (
        lambda x, t: ncc.all_to_all_v([x], [stored(t)], ALL, t),
        r"counts of float32; allowed: uint32",
    ),
    "counts of another shape": (
        lambda x, t: ncc.all_to_all_v([x], [stored(t)], ALL, t),
        r"192 counts on 4 partitions; allowed: 3 × 4 on 1",
    ),
    "a gather of one program": (
        lambda x, t: ncc.all_gather_v([x], [stored(t)], ALL, t),
        "all_gather_v at LNC 1; allowed: LNC 2",
    ),
    "places on Trainium2": (
        lambda x, t: ncc.all_to_all_v([x], [stored(t)], ALL, t, has_rdispls=True),
        "places of what is received; allowed: NeuronCore-v4",
    ),
    "a ring of two tensors": (
        lambda x, t: ncc.collective_permute_implicit_reduce([[t]], [[t]], [[t]], ALL, nl.multiply),
        "takes no op=nl.multiply; pass nl.add",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    act, words = REFUSED[case]

    def kernel(x: Tensor) -> Tensor:
        act(x, loaded(x))
        return stored(loaded(x))

    with pytest.raises(NeuronError, match=rf"(?s)test_rings.py:\d+: .*{words}"):
        nki.simulate(kernel, ranks=4)(np.zeros((4, 4, 48), np.float32))


def test_counts_that_do_not_fit_are_errors_of_the_run() -> None:
    table = metadata(False)
    table[1, 0, 2] = 11
    with pytest.raises(NeuronError, match=r"test_rings.py:\d+: .*all_to_all_v takes 11 elements"):
        nki.simulate(uneven, ranks=4)(DATA, table, ncc.all_to_all_v, True)
