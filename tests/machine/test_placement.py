"""Meshes on the topology: permutation, locality, connectedness, refusals."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronjax.errors import TopologyError
from neuronjax.machine.chips import CHIPS
from neuronjax.machine.group_sizes import GROUP_SIZES, GroupSizes
from neuronjax.machine.instances import INSTANCES
from neuronjax.machine.machine import Machine
from neuronjax.machine.placement import arrange_cores, unconnected_groups

MACHINES = [
    Machine.create(name, lnc) for name, i in INSTANCES.items() for lnc in i.chip.allowed_lncs
]


@st.composite
def meshes(draw: st.DrawFn) -> tuple[Machine, dict[str, int]]:
    """A machine and axes it supports."""
    machine = draw(st.sampled_from(MACHINES))
    sizes = GROUP_SIZES[machine.chip.name, machine.lnc]
    totals = [n for n in range(1, machine.core_count + 1) if sizes.allows(n)]
    total = draw(st.sampled_from(totals))
    inner = draw(st.sampled_from([n for n in totals if total % n == 0]))
    rest = total // inner
    outer = draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0]))
    axes = {"outer": outer, "middle": rest // outer, "inner": inner}
    if inner == 1:
        axes = {"only": total}
    return machine, axes


@settings(deadline=None)
@given(meshes())
def test_no_core_occurs_twice_and_none_outside(case: tuple[Machine, dict[str, int]]) -> None:
    machine, axes = case
    ids = arrange_cores(machine, axes)
    assert ids.shape == tuple(axes.values())
    assert ids.dtype == np.int64
    assert len(np.unique(ids)) == ids.size
    assert ids.min() == 0
    assert ids.max() < machine.core_count


@pytest.mark.parametrize("machine", MACHINES, ids=str)
def test_the_whole_machine_is_a_permutation(machine: Machine) -> None:
    ids = arrange_cores(machine, {"all": machine.core_count})
    assert sorted(ids.tolist()) == list(range(machine.core_count))
    hops = [machine.distance(a, b) for a, b in itertools.pairwise(ids.tolist())]
    assert set(hops) <= {0, 1}
    assert sum(hops) == machine.instance.chips - 1  # each chip is entered once


@pytest.mark.parametrize("machine", MACHINES, ids=str)
def test_an_inner_axis_of_one_chip_stays_on_it(machine: Machine) -> None:
    axes = {"data": machine.instance.chips, "model": machine.cores_per_chip}
    chips = arrange_cores(machine, axes) // machine.cores_per_chip
    assert (chips == chips[:, :1]).all()


@settings(deadline=None)
@given(meshes())
def test_innermost_groups_step_over_links(case: tuple[Machine, dict[str, int]]) -> None:
    machine, axes = case
    ids = arrange_cores(machine, axes)
    for group in ids.reshape(-1, ids.shape[-1]).tolist():
        assert all(machine.distance(a, b) <= 1 for a, b in itertools.pairwise(group))


POWERS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


@pytest.mark.parametrize(
    ("target", "lnc"),
    [
        ("trn1.32xlarge", 1),
        ("trn2.48xlarge", 1),
        ("trn2.48xlarge", 2),
        ("trn2-ultraserver", 1),
        ("trn2-ultraserver", 2),
        ("trn3-gen1-ultraserver", 2),
    ],
)
def test_every_split_of_a_torus_in_powers_of_two_steps_over_links(target: str, lnc: int) -> None:
    machine = Machine.create(target, lnc)
    for outer, inner in itertools.product(POWERS, POWERS):
        if machine.core_count % (outer * inner):
            continue
        axes = {"a": machine.core_count // (outer * inner), "b": outer, "c": inner}
        ids = arrange_cores(machine, axes)
        assert unconnected_groups(machine, axes, ids) == {}
        for axis in range(3):
            for group in np.moveaxis(ids, axis, -1).reshape(-1, ids.shape[axis]).tolist():
                assert all(machine.distance(a, b) <= 1 for a, b in itertools.pairwise(group))


@pytest.mark.parametrize(
    ("target", "lnc", "axes", "chips"),
    [
        # a row of the torus, then the rows below it
        ("trn2.48xlarge", 2, {"d": 4, "m": 16}, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]),
        # pairs of a row share it back to back, so that the outer axis has links too
        ("trn2.48xlarge", 2, {"d": 8, "m": 8}, [[0, 1], [3, 2], [7, 6], [4, 5], [8, 9], [11, 10]]),
        # one plane per instance
        ("trn2-ultraserver", 2, {"p": 4, "m": 64}, [[0, 1, 2, 3, 7, 6, 5, 4, 8, 9, 10, 11, 15]]),
        # half a ring
        ("inf2.48xlarge", 1, {"d": 2, "m": 12}, [[0, 1, 2, 3, 4, 5], [11, 10, 9, 8, 7, 6]]),
    ],
)
def test_chips_of_known_meshes(
    target: str, lnc: int, axes: dict[str, int], chips: list[list[int]]
) -> None:
    machine = Machine.create(target, lnc)
    rows = arrange_cores(machine, axes) // machine.cores_per_chip
    found = [list(dict.fromkeys(row)) for row in rows.tolist()]
    assert [row[: len(chips[0])] for row in found[: len(chips)]] == chips


def test_a_small_mesh_takes_the_lowest_block() -> None:
    machine = Machine.create("trn2.48xlarge")
    assert arrange_cores(machine, {"x": 2, "y": 2}).tolist() == [[0, 1], [2, 3]]
    assert sorted(arrange_cores(machine, {"x": 16}).tolist()) == list(range(16))
    assert sorted(arrange_cores(machine, {"x": 2, "y": 16}).ravel().tolist()) == list(range(32))


def test_a_mesh_on_some_of_the_cores() -> None:
    machine = Machine.create("trn2.48xlarge")
    assert arrange_cores(machine, {"x": 2, "y": 4}, range(32, 64)).tolist() == [
        [32, 33, 34, 35],
        [36, 37, 38, 39],
    ]
    # not a box: along the path through the chips
    assert arrange_cores(machine, {"x": 4}, [21, 9, 3, 2]).tolist() == [2, 3, 9, 21]


@settings(deadline=None)
@given(st.data())
def test_any_subset_of_cores_is_used_once(data: st.DataObject) -> None:
    machine = Machine.create("trn2.48xlarge")
    cores = data.draw(st.lists(st.integers(0, 63), min_size=8, max_size=40, unique=True))
    ids = arrange_cores(machine, {"x": 2, "y": 4}, cores)
    assert len(np.unique(ids)) == 8
    assert set(ids.ravel().tolist()) <= set(cores)


def test_order_of_the_given_cores_does_not_matter() -> None:
    machine = Machine.create("trn2.48xlarge")
    forward = arrange_cores(machine, {"x": 2, "y": 16}, range(64))
    backward = arrange_cores(machine, {"x": 2, "y": 16}, range(63, -1, -1))
    assert (forward == backward).all()


def test_a_group_without_links_is_found() -> None:
    machine = Machine.create("inf2.48xlarge")
    axes = {"data": 3, "model": 8}
    ids = arrange_cores(machine, axes)
    # three runs of four on a ring of twelve: their first chips are not neighbours
    assert unconnected_groups(machine, axes, ids) == {"data": (0, 14, 16)}
    torus = Machine.create("trn2.48xlarge")
    diagonal = np.array([[0, 5 * 4], [1, 5 * 4 + 1]])
    assert unconnected_groups(torus, {"a": 2, "b": 2}, diagonal) == {"b": (0, 20)}


SUPPORTED = {
    "inferentia2": {1, 2, 4, 8, 12, 24},
    "trainium1": {1, 2, 4, 8, 16, 32},
    "trainium2": {1, 2, 4, 8, 16, 32, 64},
}


@pytest.mark.parametrize("name", SUPPORTED)
def test_group_sizes_as_documented(name: str) -> None:
    sizes = GROUP_SIZES[name, CHIPS[name].default_lnc]
    largest = max(SUPPORTED[name])
    assert {size for size in range(1, largest + 1) if sizes.allows(size)} == SUPPORTED[name]


def test_every_chip_and_configuration_has_group_sizes() -> None:
    assert set(GROUP_SIZES) == {
        (chip.name, lnc) for chip in CHIPS.values() for lnc in chip.allowed_lncs
    }


@settings(deadline=None)
@given(st.sampled_from(list(GROUP_SIZES.values())), st.integers(1, 2000))
def test_nearest_sizes_are_supported(sizes: GroupSizes, size: int) -> None:
    nearest = sizes.nearest(size)
    assert nearest
    assert all(sizes.allows(candidate) for candidate in nearest)
    if sizes.allows(size):
        assert size in nearest


def refusal(target: str, axes: dict[str, object], cores: object = None) -> str:
    with pytest.raises(TopologyError) as caught:
        arrange_cores(Machine.create(target), axes, cores)  # type: ignore[arg-type]
    return str(caught.value)


def test_a_mesh_that_is_too_large_names_what_helps() -> None:
    message = refusal("trn2.3xlarge", {"data": 4, "model": 2})
    for part in (
        "data=4 × model=2 needs 8 cores",
        "trn2.3xlarge (LNC 2) offers 4",
        "NEURON_LOGICAL_NC_CONFIG=1 (8 cores)",
        "NEURONJAX_TARGET",
        "trn2.48xlarge (64 cores)",
        "trn2-ultraserver (256 cores)",
    ):
        assert part in message


def test_a_mesh_that_no_target_holds_says_so() -> None:
    message = refusal("trn2.3xlarge", {"data": 1024})
    assert "needs 1024 cores" in message
    assert "make the mesh smaller." in message
    assert "NEURONJAX_TARGET" not in message


def test_a_mesh_larger_than_the_visible_cores() -> None:
    message = refusal("trn2.48xlarge", {"data": 8}, range(4))
    assert "offers 4" in message
    assert "use more of the 64 cores" in message
    assert "NEURON_LOGICAL_NC_CONFIG" not in message


@pytest.mark.parametrize(
    ("target", "axes", "what", "nearest"),
    [
        ("trn2.48xlarge", {"data": 4, "model": 3}, "data=4 × model=3", "8 or 16"),
        ("trn2.48xlarge", {"data": 1, "model": 6}, "model=6", "4 or 8"),
        ("trn1.32xlarge", {"model": 24}, "model=24", "16 or 32"),
        ("trn2.48xlarge", {"data": 2, "model": 24}, "data=2 × model=24", "32 or 64"),
        ("inf2.48xlarge", {"data": 4, "model": 6}, "model=6", "4 or 8"),
        ("trn3-gen2-ultraserver", {"data": 12, "model": 48}, "model=48", "32 or 64"),
    ],
)
def test_unsupported_group_sizes(
    target: str, axes: dict[str, object], what: str, nearest: str
) -> None:
    message = refusal(target, axes)
    assert "Supported number of Neuron Cores is 1, 2, 4, 8" in message
    assert what in message
    assert target in message
    assert f"nearest: {nearest}" in message


def test_only_the_innermost_axis_and_the_whole_mesh_are_groups_of_consecutive_cores() -> None:
    machine = Machine.create("trn3-gen2-ultraserver")
    assert arrange_cores(machine, {"data": 18, "model": 32, "unused": 1}).size == 576


@pytest.mark.parametrize("size", [0, -2, 2.0, "4", True, None])
def test_sizes_that_are_no_positive_integers(size: object) -> None:
    message = refusal("trn2.3xlarge", {"data": size})
    assert f"'data' has size {size!r}" in message
    assert "at least 1" in message


def test_other_refusals() -> None:
    assert "at least one axis" in refusal("trn2.3xlarge", {})
    assert "core 4 does not exist" in refusal("trn2.3xlarge", {"x": 1}, [4])
    assert "given twice: [1, 1, 2]" in refusal("trn2.3xlarge", {"x": 1}, [2, 1, 1])
    assert "offers 0" in refusal("trn2.3xlarge", {"x": 1}, [])
