"""PJRT_Memory calls."""

from __future__ import annotations

import ctypes
from typing import Any

from neuronjax.pjrt.plugin_state import Plugin
from neuronjax.runtime.device import MEMORY_KINDS


def Memory_Id(plugin: Plugin, args: Any) -> None:
    args.id = plugin.handles[args.memory].id


def Memory_Kind_Id(plugin: Plugin, args: Any) -> None:
    args.kind_id = MEMORY_KINDS.index(plugin.handles[args.memory].kind)


def Memory_DebugString(plugin: Plugin, args: Any) -> None:
    args.debug_string, args.debug_string_size = plugin.strings(str(plugin.handles[args.memory]))


def Memory_ToString(plugin: Plugin, args: Any) -> None:
    args.to_string, args.to_string_size = plugin.strings(str(plugin.handles[args.memory]))


def Memory_AddressableByDevices(plugin: Plugin, args: Any) -> None:
    device = plugin.handles[args.memory].device
    state = plugin.client_of(device)
    args.devices = ctypes.addressof(state.devices) + 8 * device.id
    args.num_devices = 1
