"""`make_mesh`: JAX devices in the order of the placement."""

import subprocess
import sys
import textwrap
from dataclasses import dataclass
from typing import Any

import jax
import pytest

from neuronjax.errors import TopologyError
from neuronjax.machine.machine import Machine
from neuronjax.machine.mesh import make_mesh


@dataclass(frozen=True)
class FakeDevice:
    """What `make_mesh` reads of a device, under an id unlike its core's."""

    id: int
    chip: int
    core_on_chip: int
    target: str
    lnc: int
    platform: str = "neuron"


def fake_devices(target: str, lnc: int, first: int = 0) -> list[Any]:
    machine = Machine.create(target, lnc)
    return [
        FakeDevice(core.id - first, core.chip, core.core_on_chip, target, lnc)
        for core in machine.logical_cores[first:]
    ]


def test_devices_that_know_their_place() -> None:
    mesh = make_mesh({"data": 2, "model": 8}, devices=fake_devices("trn2.48xlarge", 2))
    assert mesh.axis_names == ("data", "model")
    assert mesh.shape == {"data": 2, "model": 8}
    assert [[d.chip for d in row] for row in mesh.devices] == [
        [0, 0, 0, 0, 1, 1, 1, 1],
        [3, 3, 3, 3, 2, 2, 2, 2],
    ]


def test_ids_may_count_from_the_first_visible_core() -> None:
    mesh = make_mesh({"model": 4}, devices=fake_devices("trn2.48xlarge", 2, first=60))
    assert [device.id for device in mesh.devices] == [0, 1, 2, 3]
    assert {device.chip for device in mesh.devices} == {15}


def test_unconnected_axes_warn() -> None:
    with pytest.warns(UserWarning, match=r"'data' joins cores \[0, 14, 16\] on chips \[0, 7, 8\]"):
        make_mesh({"data": 3, "model": 8}, devices=fake_devices("inf2.48xlarge", 1))


def test_axis_types_are_passed_on() -> None:
    explicit = (jax.sharding.AxisType.Explicit,)
    mesh = make_mesh({"x": 4}, devices=fake_devices("trn2.3xlarge", 2), axis_types=explicit)
    assert mesh.axis_types == explicit


def test_devices_of_another_platform_need_a_machine() -> None:
    cpu = jax.devices("cpu")[:1]
    with pytest.raises(TopologyError, match=r"platform cpu.*JAX_PLATFORMS=neuron.*machine="):
        make_mesh({"x": 1}, devices=cpu)
    assert make_mesh({"x": 1}, devices=cpu, machine=Machine.create()).size == 1


def test_devices_of_two_machines_are_refused() -> None:
    mixed = fake_devices("trn2.3xlarge", 2)[:2] + fake_devices("trn2.3xlarge", 1)[2:4]
    with pytest.raises(TopologyError, match="one neuron machine; got 4"):
        make_mesh({"x": 4}, devices=mixed)
    with pytest.raises(TopologyError, match="no devices"):
        make_mesh({"x": 1}, devices=[])


def test_jax_computes_on_the_mesh() -> None:
    """Sixteen CPU devices stand for four chips; needs a process of its own to have them."""
    script = """
        import jax, numpy as np
        from jax.sharding import NamedSharding, PartitionSpec as P
        from neuronjax.machine.machine import Machine
        from neuronjax.machine.mesh import make_mesh

        mesh = make_mesh({"data": 2, "model": 8}, machine=Machine.create("trn2.48xlarge"))
        x = jax.device_put(np.arange(32.0).reshape(2, 16), NamedSharding(mesh, P("data", "model")))
        total = jax.shard_map(
            lambda part: jax.lax.psum(part, ("data", "model")),
            mesh=mesh, in_specs=P("data", "model"), out_specs=P(),
        )(x)
        assert total.tolist() == [[240.0, 256.0]], total
        print([device.id for device in mesh.devices.ravel()])
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        env={"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "16", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([*range(8), *range(12, 16), *range(8, 12)])
