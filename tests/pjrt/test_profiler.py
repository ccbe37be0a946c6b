"""jax.profiler with the simulated device in it, as JAX's own reader sees its files."""

from __future__ import annotations

import ctypes
import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import neuronjax
from neuronjax.pjrt import abi, profiler
from neuronjax.profiling.xspace import PREFIX
from tests.pjrt.conftest import CallError, Calls

Planes = dict[str, dict[str, list[tuple[str, float]]]]
"""Core -> track -> (name, duration in ns)."""


def planes(folder: Path) -> Planes:
    """The simulated device in the one trace of a folder."""
    (path,) = folder.glob("plugins/profile/*/*.xplane.pb")
    return {
        plane.name.removeprefix(PREFIX): {
            line.name: [(event.name, event.duration_ns) for event in line.events]
            for line in plane.lines
        }
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes
        if plane.name.startswith(PREFIX)
    }


@pytest.fixture
def simulated(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    """Option ``simulate`` is on, which it is not in other tests."""
    client = calls.state().client
    monkeypatch.setattr(client, "options", dataclasses.replace(client.options, simulate=True))


@pytest.mark.usefixtures("simulated")
def test_a_trace_has_the_device(tmp_path: Path, neuron_devices: list[jax.Device]) -> None:
    product = jax.jit(lambda x: x @ x)
    x = jax.device_put(jnp.ones((128, 128)), neuron_devices[2])
    with neuronjax.profile() as recorded, jax.profiler.trace(tmp_path):
        for _ in range(3):
            product(x)
    (core,) = planes(tmp_path).values()
    assert recorded.profile is not None
    (program,) = recorded.profile.programs
    assert [name for name, _ in core["programs"]] == [program.name] * 3
    assert core["programs"][0][1] == pytest.approx(program.total_ns, abs=1)
    names = [name for name, _ in core["kernels"] if not name.startswith("program ")]
    assert names == [each.name for each in program.kernels]
    assert sum(ns for _, ns in core["kernels"]) == pytest.approx(program.total_ns, abs=3)
    assert "nc_matmul" in [name for name, _ in core["tensor"]]


@pytest.mark.usefixtures("simulated")
def test_every_core_of_a_mesh_is_a_plane(tmp_path: Path, neuron_devices: list[jax.Device]) -> None:
    mesh = Mesh(np.array(neuron_devices[:4]), "x")
    x = jax.device_put(jnp.ones((8, 64)), NamedSharding(mesh, PartitionSpec("x")))
    with jax.profiler.trace(tmp_path):
        jax.jit(lambda x: x.sum())(x)
    found = planes(tmp_path)
    assert [name.split(" (")[0] for name in found] == [f"NeuronCore {core}" for core in range(4)]
    assert all(len(tracks["programs"]) == 1 for tracks in found.values())


@pytest.mark.usefixtures("simulated")
def test_runs_outside_of_a_trace_are_not_in_it(
    tmp_path: Path, neuron_devices: list[jax.Device], calls: Calls
) -> None:
    double = jax.jit(lambda x: x * 2)
    x = jax.device_put(jnp.ones(8), neuron_devices[0])
    observers = list(calls.state().client.observers)
    for folder in ("first", "second"):
        double(x)
        with jax.profiler.trace(tmp_path / folder):
            pass
        assert planes(tmp_path / folder) == {}
    assert calls.state().client.observers == observers
    assert calls.plugin.live_handles()["Session"] == 0


def test_a_profiler_that_does_not_exist(calls: Calls) -> None:
    stop = abi.CALLBACK(calls.table.profiler.table[8])
    args = abi.structure("Args", profiler.CALLS["Profiler_Stop"])(16, 1)
    with pytest.raises(CallError, match="does not exist"):
        raise calls.error(stop(ctypes.addressof(args)))


def test_no_device_without_simulation(tmp_path: Path, neuron_devices: list[jax.Device]) -> None:
    x = jax.device_put(jnp.ones(8), neuron_devices[0])
    with jax.profiler.trace(tmp_path):
        jax.jit(jnp.sin)(x)
    assert planes(tmp_path) == {}
