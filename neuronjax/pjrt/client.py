"""PJRT_Client and PJRT_Plugin calls."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from neuronjax import options
from neuronjax.errors import ConfigurationError
from neuronjax.jaxlib_api import PLATFORM, compile_options, coordinator
from neuronjax.pjrt import abi
from neuronjax.pjrt.client_state import ClientState, memory_at, platform_version
from neuronjax.pjrt.element_types import dtype_of
from neuronjax.pjrt.executable import LoadedState
from neuronjax.pjrt.handles import array_type, read_bytes, read_int64s
from neuronjax.pjrt.layouts import read_order
from neuronjax.pjrt.loading import compile_unless_interrupted
from neuronjax.pjrt.plugin_state import Plugin
from neuronjax.processes.root_store import RootStore
from neuronjax.processes.roster import Process, Store
from neuronjax.runtime.client import Client


def Plugin_Initialize(plugin: Plugin, args: Any) -> None:
    """Nothing to do: the state is made with the table."""


def Plugin_Attributes(plugin: Plugin, args: Any) -> None:
    args.attributes = ctypes.addressof(plugin.attributes[0])
    args.num_attributes = plugin.attributes[1]


def Client_Create(plugin: Plugin, args: Any) -> None:
    if plugin.going_on is not None:
        plugin.going_on()
    chosen = options.load()
    given = plugin.read_named_values(args.create_options, args.num_options)
    for name, value in given.items():
        if name in ("target", "lnc", "num_cores"):
            chosen = replace(chosen, **{name: value})
        elif not name.startswith(("node_id", "num_nodes", "ml_framework", "jax_", "jaxlib_")):
            raise ConfigurationError(
                f"unknown client option {name!r}; the options are target, lnc and num_cores"
            )
    state = ClientState(plugin, Client(chosen, _process(plugin, chosen, given)))
    options.seal()
    plugin.clients.append(state)
    args.client = plugin.handles.add(state)


def _process(plugin: Plugin, chosen: options.Options, given: dict[str, Any]) -> Process | None:
    """The process among those that ``jax.distributed`` joined, or Neuron's variables describe."""
    store: Store
    index, count = given.get("node_id", 0), given.get("num_nodes", 1)
    named = chosen.process_index
    if count > 1:
        if named not in (None, index):
            raise ConfigurationError(
                f"NEURON_PJRT_PROCESS_INDEX={named}, but jax.distributed.initialize was told that "
                f"this is process {index}; make them equal."
            )
        store = coordinator.Store()
    elif named is not None and len(chosen.process_devices or ()) > 1:
        index, count = named, len(chosen.process_devices or ())
        if index >= count or chosen.root_address is None:
            raise ConfigurationError(
                f"NEURON_PJRT_PROCESS_INDEX={index} must be below {count}, the number of "
                "processes, and needs NEURON_RT_ROOT_COMM_ID=HOST:PORT of process 0."
            )
        store = RootStore(chosen.root_address, index, chosen.peer_timeout)
    else:
        return None
    generation = next(plugin.generations)
    timeouts = chosen.peer_timeout, chosen.late_peer_timeout
    return Process(index, count, store, *timeouts, generation)


def Client_Destroy(plugin: Plugin, args: Any) -> None:
    state = plugin.handles.drop(args.client)
    plugin.clients.remove(state)
    state.client.close()
    state.destroy()
    options.unseal()


def Client_PlatformName(plugin: Plugin, args: Any) -> None:
    args.platform_name, args.platform_name_size = plugin.strings(PLATFORM)


def Client_PlatformVersion(plugin: Plugin, args: Any) -> None:
    client = plugin.handles[args.client].client
    text = platform_version(client.machine, client.policy)
    args.platform_version, args.platform_version_size = plugin.strings(text)


def Client_ProcessIndex(plugin: Plugin, args: Any) -> None:
    args.process_index = plugin.handles[args.client].client.job.index


def Client_TopologyDescription(plugin: Plugin, args: Any) -> None:
    args.topology = plugin.handles[args.client].topology_handle


def Client_Devices(plugin: Plugin, args: Any) -> None:
    state = plugin.handles[args.client]
    args.devices = ctypes.addressof(state.devices)
    args.num_devices = len(state.device_handles)


def Client_AddressableDevices(plugin: Plugin, args: Any) -> None:
    state = plugin.handles[args.client]
    args.addressable_devices = ctypes.addressof(state.local_devices)
    args.num_addressable_devices = len(state.local_handles)


def _device_handle(handles: Sequence[int], number: int) -> int:
    if not 0 <= number < len(handles):
        raise IndexError(f"device {number} does not exist; there are {len(handles)} devices")
    return handles[number]


def Client_LookupDevice(plugin: Plugin, args: Any) -> None:
    args.device = _device_handle(plugin.handles[args.client].device_handles, args.id)


def Client_LookupAddressableDevice(plugin: Plugin, args: Any) -> None:
    handles = plugin.handles[args.client].local_handles
    args.addressable_device = _device_handle(handles, args.local_hardware_id)


def Client_AddressableMemories(plugin: Plugin, args: Any) -> None:
    state = plugin.handles[args.client]
    args.addressable_memories = ctypes.addressof(state.memories)
    args.num_addressable_memories = len(state.memory_handles)


def Client_UpdateGlobalProcessInfo(plugin: Plugin, args: Any) -> None:
    """Processes learn of each other through their own links."""


def Client_DefaultDeviceAssignment(plugin: Plugin, args: Any) -> None:
    state = plugin.handles[args.client]
    count = args.num_replicas * args.num_partitions
    local = state.client.job.local_devices
    first = local[0].id if count <= len(local) else 0
    if count > len(state.device_handles):
        raise ValueError(
            f"{args.num_replicas} replicas of {args.num_partitions} partitions need {count} "
            f"devices, but only {len(state.device_handles)} of {state.client.machine} are visible"
        )
    table = array_type(ctypes.c_int, args.default_assignment_size)
    out = table.from_address(args.default_assignment)
    out[:count] = range(first, first + count)


def Client_DmaMap(plugin: Plugin, args: Any) -> None:
    """Host memory needs no pinning."""


def Client_DmaUnmap(plugin: Plugin, args: Any) -> None:
    """Host memory needs no pinning."""


def host_array(args: Any) -> np.ndarray:
    """The host buffer that ``Client_BufferFromHostBuffer`` names, where it lies: it may change or
    vanish when the call has returned."""
    dtype = dtype_of(args.type)
    shape = read_int64s(args.dims, args.num_dims)
    strides = read_int64s(args.byte_strides, args.num_byte_strides)
    if 0 in shape:
        return np.empty(shape, dtype)
    if not strides:
        strides = np.empty(shape, np.dtype((np.void, dtype.itemsize))).strides
    reaches = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    low = sum(reach for reach in reaches if reach < 0)
    nbytes = sum(map(abs, reaches)) + dtype.itemsize
    span = array_type(ctypes.c_uint8, nbytes).from_address(args.data + low)
    return np.ndarray(shape, dtype, span, -low, strides)


def Client_BufferFromHostBuffer(plugin: Plugin, args: Any) -> None:
    state = plugin.handles[args.client]
    memory = memory_at(state, args.device, args.memory)
    array = host_array(args)
    layout = read_order(args.device_layout, array.shape)
    value = state.client.put(array, memory.device, memory.kind, layout)
    args.buffer = state.add_value(value)
    args.done_with_host_buffer = plugin.ready_event


def Client_CreateUninitializedBuffer(plugin: Plugin, args: Any) -> None:
    state = plugin.handles[args.client]
    memory = memory_at(state, args.device, args.memory)
    shape = read_int64s(args.shape_dims, args.shape_num_dims)
    zeros = np.zeros(shape, dtype_of(args.shape_element_type))
    layout = read_order(args.shape_layout, shape)
    args.buffer = state.add_value(state.client.put(zeros, memory.device, memory.kind, layout))


def Client_Compile(plugin: Plugin, args: Any) -> None:
    state = plugin.handles[args.client]
    program = abi.record("Program").from_address(args.program)
    code = read_bytes(program.code, program.code_size)
    serialized = read_bytes(args.compile_options, args.compile_options_size)
    with plugin.loading.begun():
        parsed = compile_options.parse(serialized)
        loaded = compile_unless_interrupted(state.client.compile, code, parsed)
        handle = plugin.handles.add(LoadedState(state, loaded, serialized))
        args.executable = plugin.loading.compiled(handle)
