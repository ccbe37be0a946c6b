"""Logical cores of every target at every logical-core configuration."""

import time

import pytest

from neuronjax.errors import LogicalCoreError, TopologyError, UnknownTargetError
from neuronjax.machine.instances import INSTANCES
from neuronjax.machine.machine import LogicalCore, Machine

GIB = 2**30
# logical cores at the default configuration and at LNC 1, from the instance pages and, for Trn2,
# about-neuron/arch/neuron-features/logical-neuroncore-config.rst
CORES = {
    "inf1.xlarge": (4, 4),
    "inf1.2xlarge": (4, 4),
    "inf1.6xlarge": (16, 16),
    "inf1.24xlarge": (64, 64),
    "inf2.xlarge": (2, 2),
    "inf2.8xlarge": (2, 2),
    "inf2.24xlarge": (12, 12),
    "inf2.48xlarge": (24, 24),
    "trn1.2xlarge": (2, 2),
    "trn1.32xlarge": (32, 32),
    "trn1n.32xlarge": (32, 32),
    "trn2.3xlarge": (4, 8),
    "trn2.48xlarge": (64, 128),
    "trn2u.48xlarge": (64, 128),
    "trn2-ultraserver": (256, 512),
    "trn3-gen1-ultraserver": (256, 512),
    "trn3-gen2-ultraserver": (576, 1152),
}
MACHINES = [
    Machine.create(name, lnc) for name, i in INSTANCES.items() for lnc in i.chip.allowed_lncs
]


def test_core_counts() -> None:
    found = {
        name: (len(Machine.create(name).logical_cores), len(Machine.create(name, 1).logical_cores))
        for name in INSTANCES
    }
    assert found == CORES


@pytest.mark.parametrize("machine", MACHINES, ids=str)
def test_cores_partition_the_machine(machine: Machine) -> None:
    cores = machine.logical_cores
    assert [core.id for core in cores] == list(range(machine.core_count))
    chips = [core.chip for core in cores]
    assert chips == sorted(chips)
    assert all(core.id == core.chip * machine.cores_per_chip + core.core_on_chip for core in cores)
    physical = [number for core in cores for number in core.physical_cores]
    assert physical == list(range(machine.instance.chips * machine.chip.cores))
    assert sum(core.hbm_bytes for core in cores) == machine.instance.hbm_bytes
    assert {core.instance_index for core in cores} == set(range(machine.instance.hosts))
    assert all(machine.topology.chip_at(core.coords) == core.chip for core in cores)


@pytest.mark.parametrize("machine", MACHINES, ids=str)
def test_a_stack_is_full_when_its_cores_are(machine: Machine) -> None:
    first_chip = machine.logical_cores[: machine.cores_per_chip]
    used = dict.fromkeys(range(machine.chip.hbm.stacks), 0)
    for core in first_chip:
        used[core.hbm_stack] += core.hbm_bytes
    assert set(used.values()) == {machine.chip.hbm.stack_bytes}


@pytest.mark.parametrize(
    ("target", "lnc", "id", "expected"),
    [
        ("trn2.3xlarge", 2, 3, LogicalCore(3, 0, 3, (0,), 0, 24 * GIB, 3, "NC_v3d", (6, 7))),
        ("trn2.3xlarge", 1, 3, LogicalCore(3, 0, 3, (0,), 0, 12 * GIB, 1, "NC_v3", (3,))),
        ("trn1.32xlarge", 1, 31, LogicalCore(31, 15, 1, (3, 3), 0, 16 * GIB, 1, "NC_v2", (31,))),
        ("inf1.6xlarge", 1, 5, LogicalCore(5, 1, 1, (1,), 0, 2 * GIB, 0, "NC_v1", (5,))),
        (
            "trn2-ultraserver",
            2,
            64 * 3 + 21,
            LogicalCore(213, 53, 1, (3, 1, 1), 3, 24 * GIB, 1, "NC_v3d", (426, 427)),
        ),
        (
            "trn3-gen2-ultraserver",
            2,
            575,
            LogicalCore(575, 143, 3, (1, 17, 3), 35, 36 * GIB, 3, "NC_v4d", (1150, 1151)),
        ),
    ],
)
def test_one_core_in_full(target: str, lnc: int, id: int, expected: LogicalCore) -> None:
    assert Machine.create(target, lnc).core(id) == expected


def test_distance_between_cores_is_that_of_their_chips() -> None:
    machine = Machine.create("trn2.48xlarge")
    assert machine.distance(0, 3) == 0
    assert machine.distance(3, 4) == 1
    assert machine.distance(0, 4 * 10) == 4  # (0, 0) to (2, 2), the farthest place of a 4×4 torus


def test_default() -> None:
    machine = Machine.create()
    assert str(machine) == "trn2.3xlarge (LNC 2)"
    assert machine.device_kind == "NC_v3d"


def test_machines_are_values() -> None:
    assert Machine.create("trn2.48xlarge") == Machine.create("TRN2.48xlarge", 2)
    assert Machine.create("trn2.48xlarge") != Machine.create("trn2.48xlarge", 1)
    assert len({Machine.create("trn1.2xlarge"), Machine.create("trn1.2xlarge", 1)}) == 1


def test_refusals() -> None:
    with pytest.raises(UnknownTargetError):
        Machine.create("trn9.48xlarge")
    with pytest.raises(LogicalCoreError):
        Machine.create("trn1.32xlarge", 2)
    with pytest.raises(TopologyError, match=r"core 4 does not exist.*0 to 3"):
        Machine.create().core(4)
    with pytest.raises(TopologyError, match="core -1"):
        Machine.create().core(-1)


def test_512_cores_take_less_than_ten_milliseconds() -> None:
    def seconds() -> float:
        start = time.perf_counter()
        assert len(Machine.create("trn2-ultraserver", 1).logical_cores) == 512
        return time.perf_counter() - start

    assert min(seconds() for _ in range(5)) < 0.010
