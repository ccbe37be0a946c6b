"""What cores send along the axes of a mesh, counted by hand, and the links between them."""

import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import neuronjax
from neuronjax.machine.axes import axes_of
from neuronjax.machine.machine import Machine
from neuronjax.planning.tracing import abstract_mesh
from neuronjax.planning.traffic import links_between

SIZE = 1 << 20


@given(st.data())
def test_axes_of_a_group_are_those_of_its_mesh(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    mesh = {f"axis{number}": size for number, size in enumerate(sizes)}
    chosen = data.draw(st.sets(st.sampled_from(sorted(mesh))))
    place = [data.draw(st.integers(0, size - 1)) for size in sizes]
    ids = np.arange(math.prod(sizes)).reshape(sizes)
    where = tuple(
        slice(None) if axis in chosen else position
        for axis, position in zip(mesh, place, strict=True)
    )
    group = tuple(map(int, np.ravel(ids[where])))
    expected = tuple(axis for axis in mesh if axis in chosen and mesh[axis] > 1)
    assert axes_of(group, mesh) == expected


SENT = {
    "all-reduce over model": (lambda x: jax.lax.psum(x, "model"), {"model": 2 * 3 / 4 * SIZE}),
    "all-gather over data": (lambda x: jax.lax.all_gather(x, "data"), {"data": SIZE}),
    "all-reduce over both": (
        lambda x: jax.lax.psum(x, ("data", "model")),
        {"data+model": 2 * 7 / 8 * SIZE},
    ),
    "two of them": (
        lambda x: jax.lax.psum(jax.lax.ppermute(x, "data", [(0, 1), (1, 0)]), "model"),
        {"data": SIZE, "model": 2 * 3 / 4 * SIZE},
    ),
}


@pytest.mark.parametrize("case", SENT)
def test_bytes_sent_by_a_core(case: str) -> None:
    body, expected = SENT[case]
    mesh = abstract_mesh("data=2,model=4")
    fn = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False))
    estimate = neuronjax.estimate(
        fn, jax.ShapeDtypeStruct((SIZE // 4,), "float32"), target="trn1.32xlarge", mesh=mesh
    )
    sent = {each.axes: each.nbytes for each in estimate.traffic if each.nbytes}
    assert sent == pytest.approx(expected, rel=1e-6)
    assert {"data", "model"} <= {each.axes for each in estimate.traffic}
    assert "Sent by a core, by mesh axis" in str(estimate)


@pytest.mark.parametrize(
    ("target", "cores", "links"),
    [
        ("trn1.32xlarge", [0, 1], ["inside a chip"]),
        ("trn1.32xlarge", [0, 2], ["NeuronLink column (line of 2, 96 GB/s a link)"]),
        ("trn1.32xlarge", range(8), ["inside each of 4 chips", "NeuronLink column (ring of 4,"]),
        ("trn1.32xlarge", [0, 8, 16, 24], ["NeuronLink row (ring of 4, 96 GB/s a link)"]),
        ("trn1.32xlarge", [0, 32], ["EFA between 2 instances (100 GB/s each)"]),
        ("trn2-ultraserver", [0, 64], ["between hosts z (line of 2, 128 GB/s a link)"]),
    ],
)
def test_links_between_cores(target: str, cores: list[int], links: list[str]) -> None:
    described = list(links_between(Machine.create(target), cores))
    assert len(described) == len(links)
    for text, beginning in zip(described, links, strict=True):
        assert text.startswith(beginning)


AXES = {
    "batch over data": ("data=2,model=4", P("data"), P("data"), ("model",)),
    "both": ("data=2,model=4", P("data", "model"), P("data", "model"), ()),
    "neither": ("data=2,model=4", P(), P(), ("data", "model")),
    "an axis of one core": ("data=4,model=1", P("data"), P("data"), ()),
    "only the result": ("data=4", P(), P("data"), ()),
    "gathered over model": ("data=2,model=2", P(("data", "model")), P("data"), ()),
}


@pytest.mark.parametrize("case", AXES)
def test_axes_that_do_nothing(case: str) -> None:
    sizes, given, result, idle = AXES[case]
    mesh = abstract_mesh(sizes)
    fn = jax.jit(
        lambda x: x * 2,
        in_shardings=jax.NamedSharding(mesh, given),
        out_shardings=jax.NamedSharding(mesh, result),
    )
    estimate = neuronjax.estimate(
        fn, jax.ShapeDtypeStruct((64, 64), "float32"), target="trn1.32xlarge", mesh=mesh
    )
    assert estimate.idle_axes == idle
    assert [axis in str(estimate).partition("Unused")[2] for axis in idle] == [True] * len(idle)
    assert ("Unused" in str(estimate)) == bool(idle)
