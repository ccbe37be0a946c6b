"""Collectives over links."""

from __future__ import annotations

import dataclasses

import pytest

from neuronjax.errors import TopologyError
from neuronjax.machine.group_sizes import GROUP_SIZES
from neuronjax.machine.instances import INSTANCES
from neuronjax.machine.machine import Machine
from neuronjax.machine.topology import Topology
from neuronjax.timing.fabric import fabric_of
from neuronjax.timing.network import INSIDE, Op, collective_time

TRN1 = Machine.create("trn1.32xlarge")
TRN2 = Machine.create("trn2.48xlarge")
SIZES = [1 << power for power in range(8, 32, 2)]


@pytest.mark.parametrize("op", Op)
@pytest.mark.parametrize("machine", [TRN1, TRN2], ids=str)
def test_more_bytes_are_never_faster(op: Op, machine: Machine) -> None:
    times = [collective_time(op, size, machine.core_count, machine).total_ns for size in SIZES]
    assert times == sorted(times)


@pytest.mark.parametrize("machine", [TRN1, TRN2], ids=str)
def test_algorithms_follow_size(machine: Machine) -> None:
    """Documented order: mesh, recursive doubling, KangaRing."""
    names = [
        collective_time("all_gather", 1 << power, machine.core_count, machine).algorithm
        for power in range(8, 32)
    ]
    order = ["mesh", "recursive doubling", "kangaring"]
    assert [order.index(name) for name in names] == sorted(order.index(name) for name in names)
    assert set(names) == set(order)


def test_the_crossing_to_recursive_doubling_is_near_the_documented_megabyte() -> None:
    def name(size: int) -> str:
        return collective_time("all_gather", size, 32, TRN1).algorithm

    assert name(1 << 19) == "mesh"
    assert name(1 << 21) != "mesh"


def test_kangaring_needs_all_cores_of_a_chip() -> None:
    one_per_chip = tuple(range(0, 32, 2))
    assert collective_time("all_gather", 1 << 28, 32, TRN1).algorithm == "kangaring"
    assert collective_time("all_gather", 1 << 28, one_per_chip, TRN1).algorithm != "kangaring"


def test_a_part_of_a_torus_is_a_ring() -> None:
    row, all_of_it = (collective_time("all_gather", 1 << 10, ranks, TRN1) for ranks in (8, 32))
    assert (row.algorithm, all_of_it.algorithm) == ("kangaring", "mesh")


def test_programs_leave_their_collectives_rings() -> None:
    names = {
        collective_time(op, size, 32, TRN1, in_program=True).algorithm
        for op in Op
        for size in SIZES
    }
    assert names == {"kangaring", "pairwise", "direct"}


def test_rings_go_from_chip_to_chip() -> None:
    """Ranks of a chip reach each other in one step: a ring has a step for each other chip."""
    hop_ns = fabric_of(TRN2, range(64)).hop_ns
    all_of_it, row, chip, pair = (
        collective_time("all_reduce", 1 << 14, ranks, TRN2, in_program=True)
        for ranks in (64, 16, 4, 2)
    )
    assert [time.algorithm for time in (all_of_it, pair)] == ["kangaring", "ring"]
    assert all_of_it.latency_ns - row.latency_ns == 2 * 12 * hop_ns
    assert row.latency_ns - chip.latency_ns == 2 * 3 * hop_ns
    assert chip.latency_ns == pair.latency_ns


TARGETS = ("inf2.48xlarge", "trn1.32xlarge", "trn2.48xlarge", "trn2-ultraserver",
           "trn3-gen1-ultraserver", "trn3-gen2-ultraserver")  # fmt: skip


@pytest.mark.parametrize("in_program", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_more_bytes_and_more_ranks_are_never_faster(target: str, in_program: bool) -> None:
    """Of the numbers of neighbouring ranks that a machine lets join, over several instances, too.

    Called alone, all ranks of an instance gather in less time than a part of them, as was measured.
    """
    machine = Machine.create(target)
    sizes = GROUP_SIZES[machine.chip.name, machine.lnc]
    counts = [n for n in range(2, 2 * machine.core_count + 1) if sizes.allows(n) and n != 12]
    counts = [n for n in counts if n & (n - 1) == 0 or n % machine.core_count == 0]
    ops = [Op.ALL_REDUCE, *((Op.ALL_GATHER, Op.REDUCE_SCATTER) if in_program else ())]
    for op in ops:
        rows = [
            [collective_time(op, size, n, machine, in_program=in_program).total_ns for n in counts]
            for size in SIZES
        ]
        assert all(row == sorted(row) for row in rows)
        assert all(list(column) == sorted(column) for column in zip(*rows, strict=True))


@pytest.mark.parametrize(
    ("machine", "name"), [(TRN1, "flat ring"), (TRN2, "hierarchical")], ids=str
)
def test_large_data_between_instances_goes_round_one_ring_on_trainium1(
    machine: Machine, name: str
) -> None:
    ranks = 2 * machine.core_count
    assert collective_time("all_reduce", 1 << 20, ranks, machine).algorithm.startswith(name)
    assert collective_time("all_reduce", 1 << 10, ranks, machine).algorithm.startswith("hier")


def test_groups_share_the_network_of_their_instance() -> None:
    together = collective_time("all_reduce", 1 << 26, 128, TRN2)
    alone = collective_time("all_reduce", 1 << 26, (0, 64), TRN2, concurrent=4)
    network = TRN2.instance.network_bandwidth / 1e9
    assert alone.wire_ns >= (1 << 26) / (network / 64)
    assert alone.wire_ns > together.wire_ns


def test_all_reduce_is_scatter_and_gather() -> None:
    big = 1 << 30
    whole = collective_time("all_reduce", big, 32, TRN1).wire_ns
    scatter = collective_time("reduce_scatter", big, 32, TRN1).wire_ns
    gather = collective_time("all_gather", big, 32, TRN1).wire_ns
    assert whole == pytest.approx(scatter + gather)
    assert scatter > gather


def test_bus_bandwidth_has_the_factors_of_the_tool() -> None:
    reduced = collective_time("all_reduce", 1 << 25, 4, TRN1)
    assert reduced.bus_bandwidth == pytest.approx(reduced.algorithm_bandwidth * 1.5)
    gathered = collective_time("all_gather", 1 << 25, 4, TRN1)
    assert gathered.bus_bandwidth == pytest.approx(gathered.algorithm_bandwidth * 0.75)
    assert reduced.algorithm_bandwidth == pytest.approx((1 << 25) / reduced.total_ns * 1e9)


def test_concurrent_groups_share_links() -> None:
    alone = collective_time("all_gather", 1 << 28, range(0, 32, 2), TRN1, concurrent=1)
    shared = collective_time("all_gather", 1 << 28, range(0, 32, 2), TRN1, concurrent=4)
    assert shared.wire_ns > alone.wire_ns
    assert shared.latency_ns == alone.latency_ns


def test_a_rank_alone_on_its_chip_leaves_links_to_its_neighbour() -> None:
    assert fabric_of(TRN1, range(0, 32, 2)).group.egress == 4 * 96 / 2 / 2
    assert fabric_of(TRN1, range(32)).group.egress == 4 * 96 / 2


def test_further_instances_are_reached_over_the_network() -> None:
    inside = collective_time("all_reduce", 1 << 26, 64, TRN2)
    across = collective_time("all_reduce", 1 << 26, 128, TRN2)
    assert across.algorithm.startswith("hierarchical")
    assert across.latency_ns - inside.latency_ns >= 2 * 15_000
    assert across.wire_ns > inside.wire_ns


def test_every_machine_answers() -> None:
    for instance in INSTANCES.values():
        machine = Machine.create(instance.name)
        if not machine.chip.core.is_published:
            continue
        for op in INSIDE:
            assert collective_time(op, 1 << 20, machine.core_count, machine).total_ns > 0


def faster(machine: Machine, factor: int) -> Machine:
    axes = tuple(
        dataclasses.replace(axis, link_bandwidth=axis.link_bandwidth * factor)
        for axis in machine.topology.axes
    )
    instance = dataclasses.replace(machine.instance, topology=Topology(axes))
    return Machine(instance, machine.lnc)


@pytest.mark.parametrize("op", Op)
def test_faster_links_are_never_slower(op: Op) -> None:
    for size in SIZES:
        slow = collective_time(op, size, 64, TRN2).total_ns
        assert collective_time(op, size, 64, faster(TRN2, 2)).total_ns <= slow


@pytest.mark.parametrize(("nbytes", "ranks"), [(0, 2), (8, 1)])
def test_what_is_no_collective_is_an_error(nbytes: int, ranks: int) -> None:
    with pytest.raises(TopologyError, match="needs at least one byte and two ranks"):
        collective_time("all_reduce", nbytes, ranks, TRN1)
