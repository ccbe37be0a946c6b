"""Pictures of machines, read back as XML: every chip, core and link is there once."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from neuronjax.errors import TopologyError
from neuronjax.machine.instances import INSTANCES
from neuronjax.machine.machine import Machine
from neuronjax.machine.mesh_picture import visualize_mesh
from neuronjax.machine.picture import Placement, svg
from neuronjax.machine.topology import Wiring
from tests.machine.test_mesh import FakeDevice


def classes(text: str, kind: str) -> list[ElementTree.Element]:
    root = ElementTree.fromstring(text)
    return [element for element in root.iter() if element.get("class") == kind]


@pytest.mark.parametrize("target", INSTANCES)
def test_chips_cores_and_links_are_drawn_once(target: str) -> None:
    machine = Machine.create(target)
    picture = svg(machine)
    topology = machine.topology
    assert len(classes(picture, "chip")) == topology.chips
    cores = [int(core.get("data-core", "")) for core in classes(picture, "core")]
    assert sorted(cores) == list(range(machine.core_count))
    drawn = {
        element.get("data-link") for kind in ("link", "wrap") for element in classes(picture, kind)
    }
    wired = {
        f"{min(chip, other)}-{max(chip, other)}"
        for chip in range(topology.chips)
        for other in topology.neighbours(chip)
        if not _is_switched(machine, chip, other)
    }
    assert drawn == wired


def _is_switched(machine: Machine, a: int, b: int) -> bool:
    topology = machine.topology
    places = zip(topology.axes, topology.coords(a), topology.coords(b), strict=True)
    return any(axis.wiring is Wiring.SWITCH and at != to for axis, at, to in places)


def test_links_that_close_a_ring_are_marked() -> None:
    wraps = classes(svg(Machine.create("trn1.32xlarge")), "wrap")
    assert len(wraps) == 8  # of four rows and four columns


def test_traffic_and_coordinates_are_shown() -> None:
    placement = Placement(
        axes={"data": 2, "model": 2}, cores=(0, 1, 2, 3), traffic={(0, 1): 3 << 20}
    )
    picture = svg(Machine.create("trn1.32xlarge"), placement)
    assert "core 2: data 1, model 0" in picture
    assert "3 MiB a step" in picture
    assert "core 9: not in the mesh" in picture


def test_a_notebook_shows_a_machine() -> None:
    shown = Machine.create("trn2.48xlarge")._repr_html_()
    assert shown.startswith("<p>trn2.48xlarge (LNC 2): 16 x ")
    assert "<svg" in shown


def test_a_mesh_on_its_machine(neuron_devices: list[jax.Device]) -> None:
    """Every device is named once, with the coordinates that JAX gives it."""
    mesh = Mesh(np.array(neuron_devices[::-1]).reshape(2, 4), ("data", "model"))
    picture = visualize_mesh(mesh)
    title, chip = str(picture).splitlines()
    assert title == "mesh (data=2, model=4) on trn2.3xlarge (LNC 1)"
    for place, device in np.ndenumerate(mesh.devices):
        assert f"{device.id}: {place}" in chip
        assert f"core {device.id}: data {place[0]}, model {place[1]}" in picture._repr_html_()


def test_devices_of_another_platform_stand_for_cores(cpu_devices: list[jax.Device]) -> None:
    mesh = Mesh(np.array(cpu_devices[:2]), ("data",))
    picture = visualize_mesh(mesh, machine=Machine.create("trn1.2xlarge"))
    assert str(picture).splitlines()[1] == "  chip 0: cores 0: (0), 1: (1)"


@pytest.mark.parametrize("chips", [(1, 1), (0, 1)])
def test_a_mesh_beyond_the_first_machine(chips: tuple[int, int]) -> None:
    """Machines of one chip each: the numbers of chips go on counting."""
    devices = [
        FakeDevice(number, chip, core_on_chip=number, target="trn2.3xlarge", lnc=2)
        for number, chip in enumerate(chips)
    ]
    picture = visualize_mesh(Mesh(np.array(devices), ("data",)))
    title, *rows = str(picture).splitlines()
    drawn = classes(f"<all>{picture._repr_html_()}</all>", "core")
    used = [core for core in drawn if "data" in core[0].text]
    assert [int(core.get("data-core", "")) for core in used] == [
        4 * chip + n for n, chip in enumerate(chips)
    ]
    assert len(drawn) == 4 * len(set(chips))
    assert ("2 machines" in title) == (len(set(chips)) > 1)
    assert [row.split(":")[0] for row in rows] == [f"  chip {chip}" for chip in sorted(set(chips))]


def test_a_mesh_of_another_platform(cpu_devices: list[jax.Device]) -> None:
    with pytest.raises(TopologyError, match="needs the devices of one neuron machine"):
        visualize_mesh(Mesh(np.array(cpu_devices), ("data",)))
