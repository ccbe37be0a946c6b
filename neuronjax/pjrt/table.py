"""The PJRT_Api table: every slot filled, from the functions named like it in the call modules."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
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
    profiler,
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

    def __init__(
        self, plugin: Plugin, native_stubs: bool, functions: Mapping[str, Call] | None = None
    ) -> None:
        """``functions`` are the implementations by call; ``None`` stands for the backend's own."""
        self.plugin = plugin
        own = implementations() | {_LAST: buffer.buffer_destroy_last}
        functions = own if functions is None else functions
        self._kept: list[Any] = []
        self._code = native.instruction_set() if native_stubs else None
        addresses = self._callbacks(
            {name: (abi.args(name), functions.get(name) or _unimplemented(name))
             for name in abi.CALLS}
            | {_LAST: (abi.args("Buffer_Destroy"), functions[_LAST])}
            | {_DELETER: (Lent, _delete_lent)}
        )  # fmt: skip
        self.slots = addresses | self._stubs(addresses)
        plugin.deleter = self.slots[_DELETER]
        self.layouts = layouts.extension(self._callbacks(layouts.calls()))
        self.profiler = profiler.extension(self.slots | self._callbacks(profiler.calls()))
        self.layouts.next = ctypes.addressof(self.profiler)
        self.api = self._api()

    def _callbacks(self, calls: dict[str, tuple[Any, Call]]) -> dict[str, int]:
        """Addresses of C callbacks for functions, by name."""
        callbacks = {
            name: guarded(self.plugin, structure, name, function)
            for name, (structure, function) in calls.items()
        }
        self._kept.append(callbacks)
        plain = {name: _address(callback) for name, callback in callbacks.items()}
        if self._code is None:
            return plain
        code = self._code
        return plain | self._install(
            {name: native.into_python(code, address) for name, address in plain.items()}
        )

    def _stubs(self, addresses: dict[str, int]) -> dict[str, int]:
        if self._code is None:
            return {}
        slow = native.Slow(buffer_destroy_last=addresses[_LAST], by_call=addresses)
        return self._install(native.stubs(self._code, slow, self.plugin.ready_event))

    def _install(self, pieces: dict[str, bytes]) -> dict[str, int]:
        """Addresses of installed machine code; none where the host refuses it."""
        installed = native.install(self._code, pieces) if self._code else None
        if installed is None:
            return {}
        self._kept.append(installed[0])
        return installed[1]

    def replace(self, functions: dict[str, Call]) -> None:
        """Lets calls be served by other functions from now on."""
        given = {name: (abi.args(name), function) for name, function in functions.items()}
        for name, address in self._callbacks(given).items():
            setattr(self.api, name, address)

    def _api(self) -> abi.Api:
        api = abi.Api()
        api.struct_size = ctypes.sizeof(abi.Api)
        api.extension_start = ctypes.addressof(self.layouts)
        api.version_size = 24
        api.major_version, api.minor_version = abi.API_VERSION
        for name in abi.CALLS:
            setattr(api, name, self.slots[name])
        return api


_LAST = "buffer_destroy_last"
_DELETER = "deleter"


class Lent(ctypes.Structure):
    """What a deleter gets: the handle itself, so the record has no fields."""


def _delete_lent(plugin: Plugin, lent: Lent) -> None:
    plugin.handles.drop(ctypes.addressof(lent))


def _address(callback: Any) -> int:
    return ctypes.cast(callback, ctypes.c_void_p).value or 0
