"""Pictures of machines, read back as XML: every chip, core and link is there once."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from neuronjax.machine.instances import INSTANCES
from neuronjax.machine.machine import Machine
from neuronjax.machine.picture import Placement, svg
from neuronjax.machine.topology import Wiring


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
