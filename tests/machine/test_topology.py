"""Topologies against printed `neuron-ls` tables, and the laws of graphs."""

import itertools
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronjax.errors import TopologyError
from neuronjax.machine.instances import INSTANCES, InstanceSpec, find_instance
from neuronjax.machine.topology import Axis, Topology, Wiring

# tools/neuron-sys-tools/neuron-ls.rst, column CONNECTED DEVICES
TORUS_4X4 = [
    (12, 3, 4, 1),
    (13, 0, 5, 2),
    (14, 1, 6, 3),
    (15, 2, 7, 0),
    (0, 7, 8, 5),
    (1, 4, 9, 6),
    (2, 5, 10, 7),
    (3, 6, 11, 4),
    (4, 11, 12, 9),
    (5, 8, 13, 10),
    (6, 9, 14, 11),
    (7, 10, 15, 8),
    (8, 15, 0, 13),
    (9, 12, 1, 14),
    (10, 13, 2, 15),
    (11, 14, 3, 12),
]
RING_12 = [
    (11, 1),
    (0, 2),
    (1, 3),
    (2, 4),
    (3, 5),
    (4, 6),
    (5, 7),
    (6, 8),
    (7, 9),
    (8, 10),
    (9, 11),
    (10, 0),
]
LINE_6 = [(1,), (0, 2), (1, 3), (2, 4), (3, 5), (4,)]
INF1_LINE_4 = [(1,), (2, 0), (3, 1), (2,)]

PRINTED = {
    "trn1.32xlarge": TORUS_4X4,
    "trn1n.32xlarge": TORUS_4X4,
    "trn2.48xlarge": TORUS_4X4,
    "trn2u.48xlarge": TORUS_4X4,
    "inf2.48xlarge": RING_12,
    "inf2.24xlarge": LINE_6,
    "inf1.6xlarge": INF1_LINE_4,
    "trn2.3xlarge": [()],
}


@pytest.mark.parametrize("name", PRINTED)
def test_neighbours_as_printed(name: str) -> None:
    topology = find_instance(name).topology
    assert [topology.neighbours(chip) for chip in range(topology.chips)] == PRINTED[name]


def test_ultraserver_adds_the_same_place_in_the_next_instances() -> None:
    topology = find_instance("trn2-ultraserver").topology
    assert topology.neighbours(0) == (12, 3, 4, 1, 48, 16)
    assert topology.neighbours(16 + 5) == (17, 20, 25, 22, 5, 37)
    assert topology.coords(16 + 5) == (1, 1, 1)


def test_trainium3_reaches_every_chip_of_its_rack_in_one_hop() -> None:
    gen1 = find_instance("trn3-gen1-ultraserver").topology
    assert gen1.neighbours(9) == tuple(chip for chip in range(64) if chip != 9)
    gen2 = find_instance("trn3-gen2-ultraserver").topology
    assert gen2.neighbours(0) == (*range(1, 72), 72)
    assert gen2.distance(0, 72) == 1
    assert gen2.distance(0, 73) == 2


@pytest.mark.parametrize(
    ("name", "a", "b", "gigabytes_per_s"),
    [
        ("trn1.32xlarge", 0, 1, 384 / 4),
        ("trn1n.32xlarge", 0, 4, 768 / 4),
        ("inf2.48xlarge", 11, 0, 192 / 2),
        ("trn2.48xlarge", 5, 9, 1024 / 4),
        ("trn2-ultraserver", 0, 12, 1024 / 4),
        ("trn2-ultraserver", 0, 16, 256 / 2),
        ("trn3-gen2-ultraserver", 0, 3, 256),
        ("trn3-gen2-ultraserver", 0, 4, 320),
        ("trn3-gen2-ultraserver", 0, 72, 128),
    ],
)
def test_link_bandwidth(name: str, a: int, b: int, gigabytes_per_s: float) -> None:
    topology = find_instance(name).topology
    assert topology.link_bandwidth(a, b) == gigabytes_per_s * 1e9
    assert topology.link_bandwidth(b, a) == gigabytes_per_s * 1e9


POINT_TO_POINT = [
    instance
    for instance in INSTANCES.values()
    if all(axis.wiring is not Wiring.SWITCH for axis in instance.topology.axes)
]


@pytest.mark.parametrize("instance", POINT_TO_POINT, ids=lambda instance: instance.name)
def test_links_of_a_chip_add_up_to_the_printed_bandwidth(instance: InstanceSpec) -> None:
    topology = instance.topology
    middle = topology.chips // 2  # has all its links, also on a line
    total = sum(topology.link_bandwidth(middle, other) for other in topology.neighbours(middle))
    assert total == instance.neuronlink_bandwidth + instance.host_to_host_neuronlink_bandwidth


@pytest.mark.parametrize("instance", INSTANCES.values(), ids=lambda instance: instance.name)
def test_path_is_hamiltonian(instance: InstanceSpec) -> None:
    topology = instance.topology
    assert sorted(topology.path) == list(range(topology.chips))
    assert all(topology.distance(a, b) == 1 for a, b in itertools.pairwise(topology.path))


@pytest.mark.parametrize(
    "name", ["inf2.48xlarge", "trn1.32xlarge", "trn2.48xlarge", "trn2-ultraserver"]
)
def test_path_of_a_torus_closes(name: str) -> None:
    topology = find_instance(name).topology
    assert topology.distance(topology.path[-1], topology.path[0]) == 1


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    axes = []
    for index in range(draw(st.integers(1, 3))):
        wiring = draw(st.sampled_from(Wiring))
        size = draw(st.integers(3 if wiring is Wiring.RING else 1, 5))
        axes.append(Axis(f"axis{index}", size, wiring, index + 1, draw(st.booleans())))
    return Topology(tuple(axes), draw(st.sampled_from([(-1, 1), (1, -1)])))


def hops_by_search(topology: Topology, start: int) -> dict[int, int]:
    hops = {start: 0}
    queue = deque([start])
    while queue:
        chip = queue.popleft()
        for other in topology.neighbours(chip):
            if other not in hops:
                hops[other] = hops[chip] + 1
                queue.append(other)
    return hops


@settings(deadline=None)
@given(topologies(), st.data())
def test_distance_is_the_shortest_path_over_links(topology: Topology, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, topology.chips - 1))
    assert hops_by_search(topology, start) == {
        chip: topology.distance(start, chip) for chip in range(topology.chips)
    }


@settings(deadline=None)
@given(topologies(), st.data())
def test_distance_is_a_metric(topology: Topology, data: st.DataObject) -> None:
    chips = st.integers(0, topology.chips - 1)
    a, b, c = data.draw(chips), data.draw(chips), data.draw(chips)
    assert (topology.distance(a, b) == 0) == (a == b)
    assert topology.distance(a, b) == topology.distance(b, a)
    assert topology.distance(a, c) <= topology.distance(a, b) + topology.distance(b, c)


@settings(deadline=None)
@given(topologies(), st.data())
def test_links_go_both_ways_and_once(topology: Topology, data: st.DataObject) -> None:
    chip = data.draw(st.integers(0, topology.chips - 1))
    neighbours = topology.neighbours(chip)
    assert len(set(neighbours)) == len(neighbours)
    assert chip not in neighbours
    assert all(chip in topology.neighbours(other) for other in neighbours)


@settings(deadline=None)
@given(topologies(), st.data())
def test_coords_and_chip_at_are_inverse(topology: Topology, data: st.DataObject) -> None:
    chip = data.draw(st.integers(0, topology.chips - 1))
    assert topology.chip_at(topology.coords(chip)) == chip


@settings(deadline=None)
@given(st.integers(3, 40))
def test_a_ring_closes(size: int) -> None:
    ring = Topology((Axis("chip", size, Wiring.RING, 1),))
    assert ring.distance(0, size - 1) == 1
    assert max(ring.distance(0, chip) for chip in range(size)) == size // 2


def test_what_is_outside_is_refused() -> None:
    torus = find_instance("trn2.48xlarge").topology
    with pytest.raises(TopologyError, match=r"chip 16 does not exist.*0 to 15"):
        torus.coords(16)
    with pytest.raises(TopologyError, match="chip -1"):
        torus.neighbours(-1)
    with pytest.raises(TopologyError, match=r"no chip at \(0, 4\)"):
        torus.chip_at((0, 4))
    with pytest.raises(TopologyError, match=r"no chip at \(0, 0, 0\)"):
        torus.chip_at((0, 0, 0))
    with pytest.raises(TopologyError, match=r"no direct link; 0 is connected to \(12, 3, 4, 1\)"):
        torus.link_bandwidth(0, 5)
    with pytest.raises(ValueError, match="ring of 2"):
        Axis("x", 2, Wiring.RING, 1)
