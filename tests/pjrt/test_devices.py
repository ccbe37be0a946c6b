"""What JAX sees of devices and memories."""

from __future__ import annotations

from typing import Any

import jax
import jax.extend
import numpy as np
import pytest

from tests.conftest import RunPython

GIB = 1 << 30


def test_devices(neuron_devices: list[jax.Device]) -> None:
    names = [f"NeuronDevice(id={i})" for i in range(8)]
    assert [repr(device) for device in neuron_devices] == names
    assert {device.platform for device in neuron_devices} == {"neuron"}
    assert {device.device_kind for device in neuron_devices} == {"NC_v3"}
    assert {device.process_index for device in neuron_devices} == {0}
    assert [device.id for device in neuron_devices] == list(range(8))
    assert [device.local_hardware_id for device in neuron_devices] == list(range(8))
    assert jax.default_backend() == "neuron"
    assert jax.device_count() == jax.local_device_count() == 8


def test_str_names_the_place(neuron_devices: list[jax.Device]) -> None:
    assert str(neuron_devices[3]) == "NeuronDevice(id=3)"


@pytest.mark.parametrize(
    ("attribute", "values"),
    [
        ("chip", [0] * 8),
        ("core", list(range(8))),
        ("core_on_chip", list(range(8))),
        ("instance", [0] * 8),
        ("hbm_bytes", [12 * GIB] * 8),
        ("target", ["trn2.3xlarge"] * 8),
        ("lnc", [1] * 8),
    ],
)
def test_attributes(attribute: str, values: list[Any], neuron_devices: list[jax.Device]) -> None:
    assert [getattr(device, attribute) for device in neuron_devices] == values


def test_coordinates_are_numbers(neuron_devices: list[jax.Device]) -> None:
    assert {type(x) for device in neuron_devices for x in device.coords} <= {int}


def test_platform_version_names_the_target() -> None:
    version = jax.extend.backend.get_backend("neuron").platform_version
    assert "neuronjax" in version
    assert "trn2.3xlarge lnc=1" in version


def test_memories(neuron_devices: list[jax.Device]) -> None:
    device = neuron_devices[2]
    kinds = ["device", "pinned_host", "unpinned_host"]
    assert sorted(memory.kind for memory in device.addressable_memories()) == kinds
    assert device.default_memory().kind == "device"
    for kind in kinds:
        memory = device.memory(kind)
        assert memory.kind == kind
        assert memory.platform == "neuron"
        assert memory.addressable_by_devices() == [device]
        assert kind in str(memory)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"Could not find memory.*sbuf"):
        device.memory("sbuf")


def test_memory_stats(neuron_devices: list[jax.Device]) -> None:
    device = neuron_devices[7]
    before = device.memory_stats()
    assert before["bytes_limit"] + before["bytes_reserved"] == 12 * GIB
    x = jax.device_put(np.zeros(1 << 20, np.float32), device)
    during = device.memory_stats()
    assert during["bytes_in_use"] - before["bytes_in_use"] == 4 << 20
    assert during["num_allocs"] == before["num_allocs"] + 1
    assert during["largest_alloc_size"] >= 4 << 20
    host = jax.device_put(x, jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host"))
    host.block_until_ready()
    assert device.memory_stats()["bytes_in_use"] == during["bytes_in_use"]
    del x
    assert device.memory_stats()["bytes_in_use"] == before["bytes_in_use"]
    assert device.memory_stats()["peak_bytes_in_use"] >= during["bytes_in_use"]


MACHINES = """
    import jax
    print(len(jax.devices()), jax.devices()[0].device_kind, jax.devices()[-1].core)
"""


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"NEURONJAX_TARGET": "trn1.2xlarge", "NEURON_LOGICAL_NC_CONFIG": None}, "2 NC_v2 1"),
        ({"NEURONJAX_TARGET": "trn2.3xlarge", "NEURON_LOGICAL_NC_CONFIG": "2"}, "4 NC_v3d 3"),
        ({"NEURON_RT_VISIBLE_CORES": "2,5-6"}, "3 NC_v3 6"),
        ({"NEURON_RT_NUM_CORES": "2"}, "2 NC_v3 1"),
        ({"NEURONJAX_TARGET": "inf1.xlarge", "NEURON_LOGICAL_NC_CONFIG": None}, "4 NC_v1 3"),
        ({"JAX_PLATFORMS": "neuron"}, "8 NC_v3 7"),
    ],
    ids=str,
)
def test_other_machines(env: dict[str, str], expected: str, run_python: RunPython) -> None:
    done = run_python(MACHINES, env)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == expected


def test_installed_but_not_chosen_leaves_the_default_platform_alone(run_python: RunPython) -> None:
    code = "import jax; print(jax.default_backend(), len(jax.devices('neuron')))"
    done = run_python(code, {"JAX_PLATFORMS": None})
    assert (done.returncode, done.stdout.strip()) == (0, "cpu 8")
