"""Collectives of kernels, against numpy: simulated, in JAX programs, and what is refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import neuronjax
from neuronjax import nki
from neuronjax.emulate.core import DataflowOrder, Order, ProgramOrder
from neuronjax.errors import ExecutionError, KernelError, UnsupportedProgramError
from neuronjax.host import meetings
from neuronjax.nki import collectives as ncc
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from tests.conftest import RunPython
from tests.nki.kernels import loaded, stored, tile

ALL = ncc.ReplicaGroup([[0, 1, 2, 3]])
PAIRS = ncc.ReplicaGroup([[0, 2], [3, 1]])
X = np.random.default_rng(0).standard_normal((4, 128, 16), np.float32)
ORDERS = (ProgramOrder(), DataflowOrder(seed=1), DataflowOrder(seed=2, adversarial=True))


def in_hbm(x: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
    return nl.ndarray(shape or x.shape, dtype=x.dtype, buffer=nl.shared_hbm)


def doubled(x: Tensor) -> Tensor:
    """On chip, so that an exchange waits for an engine."""
    result = tile(x.shape, x.dtype)
    nisa.tensor_scalar(result, loaded(x), nl.multiply, 2.0)
    return result


@nki.jit
def sums(x: Tensor, group: Any, op: Any) -> Tensor:
    out = tile(x.shape, x.dtype)
    ncc.all_reduce(srcs=[doubled(x)], dsts=[out], replica_group=group, op=op)
    return stored(out)


@nki.jit
def two_sums(x: Tensor, group: Any) -> tuple[Tensor, Tensor]:
    first, second = stored(doubled(x)), stored(loaded(x))
    outs = in_hbm(x), in_hbm(x)
    ncc.all_reduce([first, second], list(outs), group, nl.add)
    return outs


@nki.jit
def wide(x: Tensor, group: Any) -> Tensor:
    out = tile((x.shape[0], x.shape[1] * len(group.groups[0])), x.dtype)
    ncc.all_gather([doubled(x)], [out], group, collective_dim=1)
    return stored(out)


@nki.jit
def long(x: Tensor, group: Any) -> Tensor:
    out = in_hbm(x, (x.shape[0] * len(group.groups[0]), x.shape[1]))
    ncc.all_gather([stored(doubled(x))], [out], group, collective_dim=0)
    return out


@nki.jit
def shares(x: Tensor, group: Any) -> Tensor:
    out = in_hbm(x, (x.shape[0] // len(group.groups[0]), x.shape[1]))
    ncc.reduce_scatter([stored(doubled(x))], [out], group, collective_dim=0, op=nl.add)
    return out


@nki.jit
def exchanged(x: Tensor, group: Any) -> Tensor:
    out = in_hbm(x)
    ncc.all_to_all([stored(doubled(x))], [out], group, collective_dim=0)
    return out


@nki.jit
def passed_on(x: Tensor) -> Tensor:
    out = in_hbm(x)
    ring = [[rank, (rank + 1) % 4] for rank in range(4)]
    ncc.collective_permute([stored(doubled(x))], [out], ring)
    return out


@nki.jit
def own_again(x: Tensor) -> Tensor:
    """A rank's own part of what was gathered."""
    gathered = in_hbm(x, (4, *x.shape))
    ncc.all_gather([stored(doubled(x))], [gathered.reshape((512, 16))], ALL, 0)
    mine = tile(x.shape, x.dtype)
    nisa.dma_copy(mine, gathered.ap([[16, 128], [1, 16]], scalar_offset=ncc.rank_id()))
    return stored(mine)


@nki.jit
def own_of_all(x: Tensor) -> Tensor:
    """A rank's own part of an array that all ranks have."""
    mine = tile(x.shape[1:], x.dtype)
    nisa.dma_copy(mine, x.ap([[16, 128], [1, 16]], scalar_offset=ncc.rank_id(), indirect_dim=0))
    return stored(mine)


@nki.jit
def wide_by_halves(x: Tensor, group: Any) -> Tensor:
    """`wide`, of which each program has half the rows."""
    members = len(group.groups[0])
    result = in_hbm(x, (x.shape[0], x.shape[1] * members))
    half = nl.ds(nl.program_id(0) * 64, 64)
    out = tile((64, x.shape[1] * members), x.dtype)
    ncc.all_gather([doubled(x[half, :])], [out], group, collective_dim=1)
    nisa.dma_copy(result[half, :], out)
    return result


@nki.jit
def long_with_barriers(x: Tensor, group: Any) -> Tensor:
    """`long`, whose programs make half of what is sent each, and read what the other received."""
    members, core = len(group.groups[0]), nl.program_id(0)
    sent = in_hbm(x)
    received = in_hbm(x, (2, members, 64, 16))
    result = in_hbm(x, (members, 128, 16))
    half = nl.ds(core * 64, 64)
    nisa.dma_copy(sent[half, :], doubled(x[half, :]))
    nisa.core_barrier(sent, (0, 1))
    other = sent[nl.ds((1 - core) * 64, 64), :]
    ncc.all_gather([other], [received[1 - core].reshape((members * 64, 16))], group, 0)
    nisa.core_barrier(received, (0, 1))
    nisa.dma_copy(result[:, half, :], received[core])
    return result.reshape((members * 128, 16))


def of_groups(function: Callable[[np.ndarray, int], np.ndarray]) -> Callable[[Any], np.ndarray]:
    """What every rank has when `function` gets its group's arrays, and its place among them."""

    def expected(group: Any) -> np.ndarray:
        where = {rank: (ranks, at) for ranks in group.groups for at, rank in enumerate(ranks)}
        return np.stack([function(2 * X[list(where[r][0])], where[r][1]) for r in range(4)])

    return expected


GROUPED: dict[str, tuple[Any, Callable[[Any], np.ndarray]]] = {
    "all_gather along 1, SBUF": (wide, of_groups(lambda x, _: np.concatenate(list(x), 1))),
    "all_gather along 0, HBM": (long, of_groups(lambda x, _: np.concatenate(list(x), 0))),
    "reduce_scatter": (
        shares,
        of_groups(lambda x, at: np.split(x.astype(np.float64).sum(0), len(x))[at]),
    ),
    "all_to_all": (
        exchanged,
        of_groups(lambda x, at: np.concatenate([np.split(part, len(x))[at] for part in x])),
    ),
}
TWO_PROGRAMS = {
    "all_gather along 1, SBUF": wide_by_halves,
    "all_gather along 0, HBM": long_with_barriers,
}
REDUCED = {"add": np.sum, "minimum": np.min, "maximum": np.max}


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("group", [ALL, PAIRS], ids=["all", "pairs"])
@pytest.mark.parametrize("name", GROUPED)
def test_exchanges(name: str, group: Any, order: Order) -> None:
    kernel, expected = GROUPED[name]
    found = nki.simulate(kernel, order, ranks=4)(X, group)
    np.testing.assert_allclose(found, expected(group), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("group", [ALL, PAIRS], ids=["all", "pairs"])
@pytest.mark.parametrize("name", TWO_PROGRAMS)
def test_exchanges_of_two_programs(name: str, group: Any, order: Order) -> None:
    found = nki.simulate(TWO_PROGRAMS[name][2], order, ranks=4)(X, group)
    expected = GROUPED[name][1](group)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("op", REDUCED)
def test_reductions(op: str) -> None:
    found = nki.simulate(sums, ranks=4)(X, PAIRS, getattr(nl, op))
    expected = of_groups(lambda x, _: REDUCED[op](x, axis=0))(PAIRS)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_several_tensors_at_once() -> None:
    first, second = nki.simulate(two_sums, ranks=4)(X, ALL)
    np.testing.assert_allclose(first, np.broadcast_to(2 * X.sum(0), X.shape), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(second, np.broadcast_to(X.sum(0), X.shape), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_permutations_and_ranks(order: Order) -> None:
    found = nki.simulate(passed_on, order, ranks=4)(X)
    np.testing.assert_array_equal(found, np.roll(2 * X, 1, axis=0))
    np.testing.assert_array_equal(nki.simulate(own_again, order, ranks=4)(X), 2 * X)


def test_ranks_without_an_exchange(neuron_devices: list[jax.Device]) -> None:
    repeated = np.broadcast_to(X, (4, *X.shape))
    np.testing.assert_array_equal(nki.simulate(own_of_all, ranks=4)(repeated), X)
    found = sharded(mesh_of_four(neuron_devices), lambda x: own_of_all(x[0])[None])(repeated)
    np.testing.assert_array_equal(found, X)


def mesh_of_four(devices: list[jax.Device]) -> jax.sharding.Mesh:
    return jax.make_mesh((2, 2), ("a", "b"), (AxisType.Auto,) * 2, devices=devices[:4])


def rounds(x: jax.Array) -> jax.Array:
    """Kernels between operations of JAX, one of them in a loop."""

    def step(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
        return carry + wide(jnp.sin(carry), PAIRS)[:, :16], None

    return passed_on(jax.lax.scan(step, x[0], None, length=3)[0])[None]


def rounds_in_numpy(x: np.ndarray) -> np.ndarray:
    firsts = [0, 3, 0, 3]
    for _ in range(3):
        x = x + 2 * np.sin(x.astype(np.float64))[firsts].astype(np.float32)
    return np.roll(2 * x, 1, axis=0)


def sharded(mesh: jax.sharding.Mesh, function: Any) -> Any:
    split = P(("a", "b"))
    return jax.jit(
        jax.shard_map(function, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    )


def test_in_a_program_over_a_mesh(neuron_devices: list[jax.Device]) -> None:
    found = sharded(mesh_of_four(neuron_devices), rounds)(X)
    np.testing.assert_allclose(found, rounds_in_numpy(X), rtol=2e-5, atol=2e-5)
    by_two = sharded(mesh_of_four(neuron_devices), lambda x: wide_by_halves[2](x[0], PAIRS)[None])
    np.testing.assert_allclose(by_two(X), GROUPED["all_gather along 1, SBUF"][1](PAIRS), rtol=1e-6)


ON_ENGINES = """
import jax, numpy as np
from tests.nki.test_collectives import X, mesh_of_four, rounds, rounds_in_numpy, sharded
found = sharded(mesh_of_four(jax.devices("neuron")), rounds)(X)
np.testing.assert_allclose(found, rounds_in_numpy(X), rtol=2e-5, atol=2e-5)
print("as numpy")
"""


def test_on_engines(run_python: RunPython) -> None:
    env = {"NEURONJAX_EXECUTOR": "engine", "NEURONJAX_ENGINE_ORDER": "adversarial"}
    done = run_python(ON_ENGINES, env)
    assert done.stdout.strip() == "as numpy", done.stderr[-2000:]


def test_estimates_know_what_kernels_send(neuron_devices: list[jax.Device]) -> None:
    mesh = mesh_of_four(neuron_devices)
    x = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=jax.NamedSharding(mesh, P(("a", "b"))))
    found = neuronjax.estimate(sharded(mesh, lambda x: long(x[0], ALL)[None]), x, mesh=mesh)
    assert not any("host" in line for line in found.assumed)
    assert found.network_bytes == pytest.approx(3 * X[0].nbytes)
    assert found.busy_ns["collective"] > 0


def test_the_call_says_that_it_has_collectives(neuron_devices: list[jax.Device]) -> None:
    text = sharded(mesh_of_four(neuron_devices), rounds).lower(X).as_text()
    configurations = [
        json.loads(base64.b64decode(part.split('"')[1]))
        for part in text.split("backend_config = ")[1:]
        if part.startswith('"ey')
    ]
    assert [c["has_collectives"] for c in configurations] == [True] * len(configurations)
    assert configurations


@nki.jit
def asks_for_its_rank(x: Tensor) -> Tensor:
    ncc.rank_id()
    return stored(loaded(x))


@nki.jit
def copied_alone(x: Tensor) -> Tensor:
    return stored(loaded(x))


@nki.jit
def two_sizes(x: Tensor) -> Tensor:
    out = tile(x.shape, x.dtype)
    ncc.all_reduce([loaded(x)], [out], ALL, nl.add)
    ncc.all_reduce([loaded(x)], [out], ncc.ReplicaGroup([[0, 1]]), nl.add)
    return stored(out)


@nki.jit
def in_two_memories(x: Tensor) -> Tensor:
    out = in_hbm(x)
    ncc.all_reduce([loaded(x)], [out], ALL, nl.add)
    return out


REFUSED = {
    "groups that overlap": (lambda: ncc.ReplicaGroup([[0, 1], [1, 2]]), "every rank from 0 on"),
    "groups of two sizes": (lambda: ncc.ReplicaGroup([[0, 1], [2]]), "one size"),
    "no groups": (lambda: ncc.ReplicaGroup(3), "lists of ranks"),
    "a product": (lambda: nki.simulate(sums, ranks=4)(X, ALL, nl.multiply), "nl.minimum"),
    "lists for groups": (lambda: nki.simulate(sums, ranks=4)(X, [[0]], nl.add), "ReplicaGroup"),
    "no ranks": (lambda: nki.simulate(wide)(X[0], ALL), "pass ranks=4"),
    "other ranks": (lambda: nki.simulate(wide, ranks=2)(X[:2], ALL), "between 4 ranks"),
    "arrays of one rank": (lambda: nki.simulate(wide, ranks=4)(X[0], ALL), r"x has the shape"),
    "ranks of a kernel alone": (
        lambda: nki.simulate(copied_alone, ranks=4)(X),
        "no collectives, so it runs on one rank",
    ),
    "a rank alone": (lambda: nki.simulate(asks_for_its_rank)(X[0]), "nobody says how many ranks"),
    "two sizes": (lambda: nki.simulate(two_sizes, ranks=4)(X), "name every rank"),
    "two memories": (lambda: nki.simulate(in_two_memories, ranks=4)(X), "all of them in one"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, words = REFUSED[case]
    with pytest.raises((KernelError, UnsupportedProgramError), match=words):
        call()


@pytest.mark.parametrize(
    ("platform", "words"), [("neuron", "in a program for 1 core"), ("cpu", "jax.shard_map")]
)
def test_outside_a_mesh(platform: str, words: str) -> None:
    with pytest.raises(Exception, match=words):
        jax.block_until_ready(wide(jax.device_put(X[0], jax.devices(platform)[0]), ALL))


def test_a_rank_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meetings, "PATIENCE_SECONDS", 0.05)
    with pytest.raises(ExecutionError, match="ranks 0, 2, 3 did not reach the kernel"):
        meetings.Meetings().attend("wide", 1, 4, [], lambda arrays: arrays)


def test_engines_are_not_told_ranks_that_they_know() -> None:
    """A call gives the host the number of the rank, which costs an engine a kernel of its own."""
    mesh = jax.make_mesh((4,), ("x",), (AxisType.Auto,), devices=jax.devices()[:4])
    rows = P("x")
    function = jax.jit(
        jax.shard_map(
            lambda x: sums(x, ALL, nl.add), mesh=mesh, in_specs=rows, out_specs=rows,
            check_vma=False,
        )
    )  # fmt: skip
    x = jax.ShapeDtypeStruct((512, 16), np.float32, sharding=jax.NamedSharding(mesh, rows))
    estimate = neuronjax.estimate(function, x)
    assert {share.operations for share in estimate.kernels} == {("sums",)}
