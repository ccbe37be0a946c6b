"""The PJRT_Api table: every slot filled, from the functions named like it in the call modules."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import ModuleType
from typing import Any

from neuronjax.errors import NotImplementedCallError
from neuronjax.pjrt import (
    abi,
    buffer,
    client,
    device,
    error,
    event,
    executable,
    layouts,
    memory,
    native,
    topology,
    transfer,
)
from neuronjax.pjrt.guard import guarded
from neuronjax.pjrt.plugin_state import Plugin

MODULES: tuple[ModuleType, ...] = (
    error, event, client, device, memory, buffer, executable, topology, transfer,
)  # fmt: skip

Call = Callable[[Plugin, Any], None]


def implementations() -> dict[str, Call]:
    """Call name -> function, for the calls that are implemented."""
    found: dict[str, Call] = {}
    for name in abi.CALLS:
        for module in MODULES:
            if hasattr(module, name):
                found[name] = getattr(module, name)
    return found


def _unimplemented(name: str) -> Call:
    def refuse(plugin: Plugin, args: Any) -> None:
        raise NotImplementedCallError(f"PJRT_{name} is not implemented by the neuron backend")

    return refuse


class Table:
    """The api record and everything its pointers lead to; it must never be freed."""

    def __init__(self, plugin: Plugin, native_stubs: bool) -> None:
        self.plugin = plugin
        functions = implementations()
        self.callbacks = {
            name: guarded(plugin, abi.args(name), name, functions.get(name) or _unimplemented(name))
            for name in abi.CALLS
        }
        self.native: tuple[Any, dict[str, int]] | None = None
        if native_stubs and native.supported():
            self.native = self._native()
        self.layouts = layouts.extension(
            plugin, lambda name, kind, function: guarded(plugin, kind, name, function)
        )
        self.api = self._api()

    def _native(self) -> tuple[Any, dict[str, int]] | None:
        last = guarded(
            self.plugin, abi.args("Buffer_Destroy"), "Buffer_Destroy", buffer.buffer_destroy_last
        )
        self.callbacks["buffer_destroy_last"] = last
        slow = native.Slow(
            buffer_destroy_last=_address(last),
            by_call={name: _address(callback) for name, callback in self.callbacks.items()},
        )
        return native.install(native.stubs(slow, self.plugin.ready_event))

    def _api(self) -> abi.Api:
        api = abi.Api()
        api.struct_size = ctypes.sizeof(abi.Api)
        api.extension_start = ctypes.addressof(self.layouts)
        api.version_size = 24
        api.major_version, api.minor_version = abi.API_VERSION
        fast = self.native[1] if self.native else {}
        for name in abi.CALLS:
            setattr(api, name, fast.get(name) or _address(self.callbacks[name]))
        return api


def _address(callback: Any) -> int:
    return ctypes.cast(callback, ctypes.c_void_p).value or 0
