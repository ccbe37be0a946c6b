"""Which cores processes have."""

from __future__ import annotations

import pytest

from neuronjax.errors import TopologyError
from neuronjax.machine.hosts import core_of, cores_of_process
from neuronjax.machine.machine import Machine


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
