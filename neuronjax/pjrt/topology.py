"""PJRT_TopologyDescription calls and ahead-of-time compilation for a named machine."""

from __future__ import annotations

import ctypes
import json
from typing import Any

from neuronjax import __version__, options
from neuronjax.errors import ConfigurationError, SerializationError
from neuronjax.jaxlib_api import PLATFORM, compile_options
from neuronjax.legalize.policy import policy_of
from neuronjax.machine.hosts import core_of
from neuronjax.machine.machine import LogicalCore, Machine
from neuronjax.pjrt import abi
from neuronjax.pjrt.client_state import TopologyState, platform_version
from neuronjax.pjrt.executable import ExecutableState
from neuronjax.pjrt.handles import read_bytes
from neuronjax.pjrt.plugin_state import Plugin
from neuronjax.runtime.analysis import Analysis
from neuronjax.runtime.client import compile_ahead
from neuronjax.runtime.device import Device, devices_of


def _state(plugin: Plugin, machine: Machine, devices: list[Device]) -> TopologyState:
    return TopologyState(plugin, machine, devices, policy_of(options.load(), machine.chip))


def _add(plugin: Plugin, machine: Machine) -> int:
    devices = devices_of(machine, [machine.logical_cores])
    return plugin.handles.add(_state(plugin, machine, devices))


def TopologyDescription_Create(plugin: Plugin, args: Any) -> None:
    """The topology's name is a target; option ``lnc`` its logical core size."""
    name = read_bytes(args.topology_name, args.topology_name_size).decode()
    chosen = plugin.read_named_values(args.create_options, args.num_options)
    unknown = chosen.keys() - {"lnc", "target"}
    if unknown:
        raise ConfigurationError(
            f"unknown topology options {sorted(unknown)}; the options are lnc and target"
        )
    defaults = options.load()
    target = name or chosen.get("target", defaults.target)
    args.topology = _add(plugin, Machine.create(target, chosen.get("lnc", defaults.lnc)))


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
    text = platform_version(__version__, topology.machine, topology.policy) + ", ahead of time"
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
        cores: dict[int, list[LogicalCore]] = {}
        for id, process in zip(record["cores"], record["processes"], strict=True):
            cores.setdefault(process, []).append(core_of(machine, id))
        devices = devices_of(machine, [cores[process] for process in sorted(cores)])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise SerializationError(
            f"these bytes are not a neuron topology: {str(error)[:200]}"
        ) from None
    args.topology = plugin.handles.add(_state(plugin, machine, devices))


def Compile(plugin: Plugin, args: Any) -> None:
    """Compiles for a topology without loading: no device of it needs to exist here."""
    program = abi.record("Program").from_address(args.program)
    code = read_bytes(program.code, program.code_size)
    serialized = read_bytes(args.compile_options, args.compile_options_size)
    topology = plugin.handles[args.topology]
    compiled, host, memory = compile_ahead(
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
