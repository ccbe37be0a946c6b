"""PJRT_Device and PJRT_DeviceDescription calls."""

from __future__ import annotations

import ctypes
from typing import Any

from neuronjax.errors import NotAddressableError
from neuronjax.pjrt import abi
from neuronjax.pjrt.client_state import ClientState
from neuronjax.pjrt.plugin_state import Plugin
from neuronjax.runtime.device import MEMORY_KINDS, Device

_OPTIONAL_STATS = tuple(
    name.removesuffix("_is_set")
    for name, *_ in abi.args("Device_MemoryStats")._fields_
    if name.endswith("_is_set")
)


def DeviceDescription_Id(plugin: Plugin, args: Any) -> None:
    args.id = plugin.handles[args.device_description].device.id


def DeviceDescription_ProcessIndex(plugin: Plugin, args: Any) -> None:
    args.process_index = plugin.handles[args.device_description].device.process_index


def DeviceDescription_Attributes(plugin: Plugin, args: Any) -> None:
    array, count = plugin.handles[args.device_description].attribute_values
    args.attributes = ctypes.addressof(array)
    args.num_attributes = count


def DeviceDescription_Kind(plugin: Plugin, args: Any) -> None:
    kind = plugin.handles[args.device_description].device.kind
    args.device_kind, args.device_kind_size = plugin.strings(kind)


def DeviceDescription_DebugString(plugin: Plugin, args: Any) -> None:
    text = plugin.handles[args.device_description].debug_string
    args.debug_string, args.debug_string_size = plugin.strings(text)


def DeviceDescription_ToString(plugin: Plugin, args: Any) -> None:
    text = str(plugin.handles[args.device_description].device)
    args.to_string, args.to_string_size = plugin.strings(text)


def Device_GetDescription(plugin: Plugin, args: Any) -> None:
    device = plugin.handles[args.device]
    args.device_description = plugin.client_of(device).description_handles[device.id]


def Device_IsAddressable(plugin: Plugin, args: Any) -> None:
    device = plugin.handles[args.device]
    args.is_addressable = plugin.client_of(device).is_local(device)


def Device_LocalHardwareId(plugin: Plugin, args: Any) -> None:
    args.local_hardware_id = plugin.handles[args.device].local_id


def Device_AddressableMemories(plugin: Plugin, args: Any) -> None:
    device = plugin.handles[args.device]
    state = plugin.client_of(device)
    args.memories = ctypes.addressof(state.memories_of[device.id])
    args.num_memories = len(MEMORY_KINDS) if state.is_local(device) else 0


def Device_DefaultMemory(plugin: Plugin, args: Any) -> None:
    device = plugin.handles[args.device]
    state = plugin.client_of(device)
    _check_local(state, device, "memory")
    args.memory = state.memory_handles[device.id, MEMORY_KINDS[0]]


def Device_MemoryStats(plugin: Plugin, args: Any) -> None:
    device = plugin.handles[args.device]
    state = plugin.client_of(device)
    _check_local(state, device, "memory statistics")
    stats = state.client.ledger.stats(device.id)
    args.bytes_in_use = stats.bytes_in_use
    for field in _OPTIONAL_STATS:
        known = hasattr(stats, field)
        setattr(args, f"{field}_is_set", known)
        if known:
            setattr(args, field, getattr(stats, field))


def _check_local(state: ClientState, device: Device, what: str) -> None:
    if not state.is_local(device):
        raise NotAddressableError(
            f"only process {device.process_index} knows the {what} of {device}; this is process "
            f"{state.client.job.index}. Ask one of jax.local_devices()."
        )


def Device_PoisonExecution(plugin: Plugin, args: Any) -> None:
    args.poisoned = False


def Device_CreateAsyncTrackingEvent(plugin: Plugin, args: Any) -> None:
    text = ctypes.string_at(args.description, args.description_size).decode()
    args.event = plugin.handles.add(text)


def AsyncTrackingEvent_Destroy(plugin: Plugin, args: Any) -> None:
    plugin.handles.drop(args.event)
