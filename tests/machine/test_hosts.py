"""Which cores processes have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from neuronjax.errors import TopologyError
from neuronjax.machine.hosts import core_of, cores_of_process
from neuronjax.machine.machine import Machine
from neuronjax.machine.mesh import make_mesh
from neuronjax.machine.placement import arrange_cores


@pytest.mark.parametrize(
    ("target", "count", "hosts"),
    [
        ("trn2.48xlarge", 1, [[0]]),
        ("trn2.48xlarge", 3, [[0], [1], [2]]),
        ("trn2-ultraserver", 1, [[0, 1, 2, 3]]),
        ("trn2-ultraserver", 2, [[0, 1], [2, 3]]),
        ("trn2-ultraserver", 4, [[0], [1], [2], [3]]),
        ("trn2-ultraserver", 8, [[0], [1], [2], [3], [4], [5], [6], [7]]),
        ("trn3-gen2-ultraserver", 9, [list(range(i, i + 4)) for i in range(0, 36, 4)]),
    ],
)
def test_hosts_of_processes(target: str, count: int, hosts: list[list[int]]) -> None:
    machine = Machine.create(target)
    cores = [cores_of_process(machine, process, count) for process in range(count)]
    assert [sorted({core.instance_index for core in each}) for each in cores] == hosts
    ids = [core.id for each in cores for core in each]
    assert ids == list(range(len(ids)))
    assert [core_of(machine, id) for id in ids] == [core for each in cores for core in each]


@pytest.mark.parametrize(("target", "count"), [("trn2-ultraserver", 3), ("trn2-ultraserver", 6)])
def test_processes_that_cannot_share(target: str, count: int) -> None:
    with pytest.raises(TopologyError, match=f"{count} processes cannot share the 4 hosts"):
        cores_of_process(Machine.create(target), 0, count)


@dataclass
class FakeDevice:
    """A device as ``make_mesh`` sees it, and as ``Mesh`` takes it."""

    id: int
    chip: int
    core_on_chip: int
    target: str
    lnc: int
    platform: str = "neuron"
    device_kind: str = "NC_v3d"
    process_index: int = 0

    def __hash__(self) -> int:
        return self.id


def test_a_mesh_over_two_machines_divides_its_first_axis() -> None:
    machine = Machine.create("trn2.48xlarge")
    devices: list[Any] = [
        FakeDevice(core.id, core.chip, core.core_on_chip, machine.target, machine.lnc)
        for process in range(2)
        for core in cores_of_process(machine, process, 2)
    ]
    mesh = make_mesh({"data": 4, "model": 32}, devices=devices)
    ids = np.vectorize(lambda device: device.id)(mesh.devices)
    one = arrange_cores(machine, {"data": 2, "model": 32})
    np.testing.assert_array_equal(ids, np.concatenate([one, one + 64]))
    small = make_mesh({"model": 64}, devices=devices[64:])
    assert {device.id for device in small.devices} == set(range(64, 128))
    with pytest.raises(TopologyError, match="axis 'data' of size 1 does not divide over them"):
        make_mesh({"data": 1, "model": 128}, devices=devices)
