"""Devices, their memories, and which of them a process sees."""

from __future__ import annotations

from typing import Any

import pytest

from neuronjax.errors import VisibleCoresError
from neuronjax.machine.machine import Machine
from neuronjax.options import Options
from neuronjax.runtime.device import Device, devices_of, visible_cores


def devices_seen(options: Options) -> list[Device]:
    machine = Machine.create(options.target, options.lnc)
    return devices_of(machine, [visible_cores(machine, options, machine.logical_cores)])


def seen(**switches: Any) -> list[tuple[int, int]]:
    """(device id, core of the machine) of what a process sees of one trn2 chip."""
    options = Options(target="trn2.3xlarge", lnc=1, **switches)
    devices = devices_seen(options)
    return [(device.id, device.core.id) for device in devices]


@pytest.mark.parametrize(
    ("switches", "cores"),
    [
        ({}, list(range(8))),
        ({"visible_cores": (2, 3)}, [2, 3]),
        ({"visible_cores": (7, 0, 4)}, [7, 0, 4]),
        ({"num_cores": 3}, [0, 1, 2]),
        ({"num_cores": 8}, list(range(8))),
        ({"visible_cores": (6, 5, 4), "num_cores": 2}, [6, 5]),
    ],
    ids=str,
)
def test_visible_cores(switches: dict[str, Any], cores: list[int]) -> None:
    assert seen(**switches) == list(enumerate(cores))


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ({"visible_cores": (0, 8)}, "asks for core 8.*0-7.*NEURONJAX_TARGET"),
        ({"num_cores": 9}, "NEURON_RT_NUM_CORES=9 are more than the 8"),
        (
            {"num_cores": 9, "process_devices": (1, 9)},
            "the 9 cores of NEURON_PJRT_PROCESSES_NUM_DEVICES are more than the 8",
        ),
        ({"visible_cores": (1, 2), "num_cores": 3}, "NEURON_RT_NUM_CORES=3.* the 2"),
    ],
    ids=str,
)
def test_cores_that_are_not_there(switches: dict[str, Any], message: str) -> None:
    with pytest.raises(VisibleCoresError, match=message):
        seen(**switches)


def test_memories_have_ids_of_their_own() -> None:
    options = Options(target="trn2.3xlarge", lnc=1)
    devices = devices_seen(options)
    memories = [memory for device in devices for memory in device.memories]
    assert len({memory.id for memory in memories}) == len(memories) == 24
    assert {memory.kind for memory in memories} == {"device", "pinned_host", "unpinned_host"}
    assert str(devices[2].memory("pinned_host")) == (
        "NeuronMemory(id=7, kind=pinned_host, device=2)"
    )
