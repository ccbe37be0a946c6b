"""Machines that do not exist: fields that change, and what changes with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronjax.errors import ConfigurationError, UnknownTargetError
from neuronjax.machine.machine import Machine
from neuronjax.planning.estimate import of_factory, setting_of
from neuronjax.planning.tracing import abstract_mesh
from neuronjax.planning.what_if import machine_of
from neuronjax.planning.workload import load
from neuronjax.timing.network import Op, collective_time

GIB = 1 << 30
BIG = """
base = "trn2.48xlarge"
lnc = 1
[chip.hbm]
capacity_bytes = "192 GiB"
bandwidth = "x2"
[topology.axes.row]
link_bandwidth = "x2"
[topology.axes.column]
link_bandwidth = 512e9
[chip.core.engines.vector]
clock_hz = "1.92 GHz"
[calibration]
collective_base_ns = 100
"""


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "big.toml"
    file.write_text(BIG)
    machine, calibration = machine_of("trn1.2xlarge", None, file)
    assert machine_of("trn1.2xlarge", None, BIG) == (machine, calibration)
    plain = Machine.create("trn2.48xlarge", 1)
    assert (machine.target, machine.lnc) == ("trn2.48xlarge", 1)
    assert machine.core_hbm_bytes == 2 * plain.core_hbm_bytes == 24 * GIB
    assert machine.chip.hbm.bandwidth == 2 * plain.chip.hbm.bandwidth
    assert machine.chip.core.vector.clock_hz == 1_920_000_000
    assert [axis.link_bandwidth for axis in machine.topology.axes] == [512 * 10**9] * 2
    assert calibration.collective_base_ns == 100
    assert machine.chip.core.scalar == plain.chip.core.scalar


def test_links_and_clocks_change_times() -> None:
    fast = {
        "topology": {"axes": {"row": {"link_bandwidth": "x2"}, "column": {"link_bandwidth": "x2"}}}
    }
    plain = Machine.create("trn1.32xlarge")
    doubled, _ = machine_of("trn1.32xlarge", None, fast)
    slow, quick = (
        collective_time(Op.ALL_TO_ALL, 1 << 26, 32, each).wire_ns for each in (plain, doubled)
    )
    assert quick < slow

    stack, axes = load("tests.planning.programs:stack"), abstract_mesh("core=1")
    tensor = {"chip": {"core": {"tensor": {"clock_hz": "x4"}}}}
    usual = of_factory(stack, setting_of("trn1.2xlarge", None), axes, layers=2)
    faster = of_factory(stack, setting_of("trn1.2xlarge", None, tensor), axes, layers=2)
    assert faster.busy_ns["tensor"] == pytest.approx(usual.busy_ns["tensor"] / 4, rel=0.01)
    assert faster.max_flops == 4 * usual.max_flops


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"chip": {"hbm": {"size": 1}}}, r"machine.chip.hbm has no field 'size'.*capacity_bytes"),
        ({"chip": {"core": {"engines": {"tpu": {}}}}}, "no entry 'tpu'; choose one of vector"),
        ({"topology": {"axes": {"z": {}}}}, "no entry 'z'; choose one of row, column"),
        ({"chip": {"hbm": {"bandwidth": "fast"}}}, "is not a number"),
        ({"chip": {"hbm": {"bandwidth": {}}}}, "cannot replace"),
        ({"topology": {"axes": {"row": {"wiring": "rope"}}}}, "line, ring, switch"),
        ({"topology": {"axes": {"row": {"wiring": "ring", "size": 2}}}}, "a ring of 2"),
        ({"calibration": {"speed": 1}}, "calibration has no field 'speed'"),
    ],
)
def test_refused(changes: dict, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        machine_of("trn1.32xlarge", None, changes)


def test_refused_files(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("[chip")
    with pytest.raises(ConfigurationError, match="not TOML"):
        machine_of("trn1.2xlarge", None, file)
    with pytest.raises(UnknownTargetError):
        machine_of("trn1.2xlarge", None, {"base": "trn8"})
