"""PJRT_TopologyDescription calls and ahead-of-time compilation for a named machine."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from neuronjax import options
from neuronjax.errors import ConfigurationError, SerializationError, quoted
from neuronjax.jaxlib_api import PLATFORM, compile_options
from neuronjax.legalize.policy import policy_of
from neuronjax.machine.hosts import core_of
from neuronjax.machine.machine import LogicalCore, Machine
from neuronjax.option_values import MOST_CORES
from neuronjax.pjrt import abi
from neuronjax.pjrt.client_state import TopologyState, platform_version
from neuronjax.pjrt.executable import ExecutableState
from neuronjax.pjrt.handles import read_bytes
from neuronjax.pjrt.loading import compile_unless_interrupted
from neuronjax.pjrt.plugin_state import Plugin
from neuronjax.runtime.analysis import Analysis
from neuronjax.runtime.client import compile_ahead
from neuronjax.runtime.device import Device, devices_of


def _state(plugin: Plugin, machine: Machine, devices: list[Device]) -> TopologyState:
    return TopologyState(plugin, machine, devices, policy_of(options.load(), machine.chip))


OPTIONS = ("lnc", "num_slices", "target")


def TopologyDescription_Create(plugin: Plugin, args: Any) -> None:
    """The topology's name is a target; option ``lnc`` is its logical core size, and ``num_slices``
    the number of such targets, joined by EFA, each of which is a process of its own."""
    name = read_bytes(args.topology_name, args.topology_name_size).decode()
    chosen = plugin.read_named_values(args.create_options, args.num_options)
    unknown = sorted(chosen.keys() - set(OPTIONS))
    if unknown:
        raise ConfigurationError(
            f"unknown topology options {', '.join(unknown)}; the options are {', '.join(OPTIONS)}."
        )
    defaults = options.load()
    target = name or chosen.get("target", defaults.target)
    machine = Machine.create(target, chosen.get("lnc", defaults.lnc))
    devices = _devices(machine, chosen.get("num_slices"))
    args.topology = plugin.handles.add(_state(plugin, machine, devices))


def _devices(machine: Machine, slices: Any) -> list[Device]:
    """The devices of one machine, or of several, which then know their slice."""
    if slices is None:
        return devices_of(machine, [machine.logical_cores])
    most = MOST_CORES // machine.core_count if machine.instance.network_bandwidth else 1
    if type(slices) is not int or not 1 <= slices <= most:
        raise ConfigurationError(
            f"topology option num_slices={quoted(slices)} is not a number of {machine.target}: "
            f"give a whole number from 1 to {most}."
        )
    return _sliced(machine, range(slices * machine.core_count))


def _sliced(machine: Machine, cores: Iterable[int]) -> list[Device]:
    by_slice: dict[int, list[LogicalCore]] = {}
    for core in cores:
        by_slice.setdefault(core // machine.core_count, []).append(core_of(machine, core))
    devices = devices_of(machine, list(by_slice.values()))
    return [replace(device, slice_index=device.process_index) for device in devices]


def TopologyDescription_Destroy(plugin: Plugin, args: Any) -> None:
    topology = plugin.handles[args.topology]
    if all(state.topology is not topology for state in plugin.clients):
        plugin.handles.drop(args.topology).destroy()


def TopologyDescription_PlatformName(plugin: Plugin, args: Any) -> None:
    args.platform_name, args.platform_name_size = plugin.strings(PLATFORM)


def TopologyDescription_PlatformVersion(plugin: Plugin, args: Any) -> None:
    """Never the version of a client: JAX would compile through the client that has the same, with
    the interpreter locked, and here a compile of another thread needs the interpreter."""
    topology = plugin.handles[args.topology]
    text = platform_version(topology.machine, topology.policy) + ", ahead of time"
    args.platform_version, args.platform_version_size = plugin.strings(text)


def TopologyDescription_GetDeviceDescriptions(plugin: Plugin, args: Any) -> None:
    topology = plugin.handles[args.topology]
    args.descriptions = ctypes.addressof(topology.descriptions)
    args.num_descriptions = len(topology.handles)


def TopologyDescription_Attributes(plugin: Plugin, args: Any) -> None:
    array, count = plugin.handles[args.topology].attributes
    args.attributes = ctypes.addressof(array)
    args.num_attributes = count


def TopologyDescription_Serialize(plugin: Plugin, args: Any) -> None:
    topology = plugin.handles[args.topology]
    text = json.dumps(
        {
            "target": topology.machine.target,
            "lnc": topology.machine.lnc,
            "cores": [device.core.id for device in topology.devices],
            "processes": [device.process_index for device in topology.devices],
            "slices": any(device.slice_index is not None for device in topology.devices),
        }
    )
    (
        args.serialized_bytes,
        args.serialized_bytes_size,
        args.serialized_topology,
        args.serialized_topology_deleter,
    ) = plugin.lend(text.encode())


def TopologyDescription_Deserialize(plugin: Plugin, args: Any) -> None:
    data = read_bytes(args.serialized_topology, args.serialized_topology_size)
    try:
        record = json.loads(data)
        machine = Machine.create(record["target"], record["lnc"])
        devices = _recorded(machine, record)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise SerializationError(
            f"these bytes are not a neuron topology: {str(error)[:200]}"
        ) from None
    args.topology = plugin.handles.add(_state(plugin, machine, devices))


def _recorded(machine: Machine, record: dict[str, Any]) -> list[Device]:
    if record["slices"]:
        return _sliced(machine, record["cores"])
    cores: dict[int, list[LogicalCore]] = {}
    for id, process in zip(record["cores"], record["processes"], strict=True):
        cores.setdefault(process, []).append(core_of(machine, id))
    return devices_of(machine, [cores[process] for process in sorted(cores)])


def Compile(plugin: Plugin, args: Any) -> None:
    """Compiles for a topology without loading: no device of it needs to exist here."""
    program = abi.record("Program").from_address(args.program)
    code = read_bytes(program.code, program.code_size)
    serialized = read_bytes(args.compile_options, args.compile_options_size)
    topology = plugin.handles[args.topology]
    compiled, host, memory = compile_unless_interrupted(
        compile_ahead,
        code,
        compile_options.parse(serialized),
        topology.devices,
        topology.policy,
        topology.reporter,
    )
    analysis = Analysis(compiled, compiled.num_devices, topology.machine, host)
    simulates = options.load().simulate
    state = ExecutableState(plugin, compiled, host, memory, serialized, analysis, simulates)
    args.executable = state.new_handle()
