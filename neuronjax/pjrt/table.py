"""The PJRT_Api table: every slot filled, from the functions named like it in the call modules."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from operator import attrgetter
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
    getters,
    layouts,
    memory,
    native,
    profiler,
    topology,
    transfer,
)
from neuronjax.pjrt.getters import BUFFER_DESTROY_LAST
from neuronjax.pjrt.guard import Callback, guarded
from neuronjax.pjrt.native_ir import COLLECT, DELETER, END_RUN, FROM_CODE
from neuronjax.pjrt.plugin_state import Plugin

MODULES: tuple[ModuleType, ...] = (
    error, event, client, device, memory, buffer, executable, topology, transfer,
)  # fmt: skip

Call = Callable[[Plugin, Any], None]


def implementations() -> dict[str, Call]:
    """Call name -> function, for the calls that are implemented, other than by ``getters.py``."""
    own = {
        name: getattr(module, name)
        for name in abi.CALLS
        for module in MODULES
        if hasattr(module, name)
    }
    return own | {
        BUFFER_DESTROY_LAST: buffer.buffer_destroy_last,
        COLLECT: buffer.collect,
        END_RUN: executable.end_run,
    }


def callbacks(plugin: Plugin, functions: Mapping[str, Call]) -> dict[str, Callback]:
    """Every callback by the name of its call; ``functions`` are the implementations."""
    calls = {
        **{name: (view(name), functions.get(name) or _make_refusal(name)) for name in abi.CALLS},
        **{name: (None, functions[name]) for name in FROM_CODE},
        DELETER: (Lent, _delete_lent),
        **layouts.calls(),
        **profiler.calls(),
    }
    made = {
        name: guarded(plugin, structure, name, function)
        for name, (structure, function) in calls.items()
    }
    return made | getters.callbacks(plugin, made)


BY_ADDRESS = frozenset(
    {
        "LoadedExecutable_Execute",
        "Buffer_Destroy",
        "Buffer_ToHostBuffer",
        "Buffer_ReadyEvent",
        "Event_Destroy",
        "Event_IsReady",
        "Event_Error",
        "Event_OnReady",
        "Error_Destroy",
        BUFFER_DESTROY_LAST,
    }
)
"""Calls that JAX makes for every run or value: their functions get the address of the arguments,
since making a ctypes view of it and reading its fields costs more than all that they do."""


def view(name: str) -> Any:
    """The structure of a call's arguments; ``None`` where its function takes their address."""
    return None if name in BY_ADDRESS else abi.args(name)


def _make_refusal(name: str) -> Call:
    def refuse(plugin: Plugin, args: Any) -> None:
        raise NotImplementedCallError(f"PJRT_{name} is not implemented by the neuron backend")

    return refuse


class Table:
    """The api record and everything its pointers lead to; it must never be freed."""

    def __init__(
        self,
        plugin: Plugin,
        native_stubs: bool,
        functions: Mapping[str, Call] | None = None,
        compiler: native.Compiler = native.Compiled,
    ) -> None:
        """``functions`` are the implementations by call; ``None`` stands for the backend's own."""
        self.plugin = plugin
        functions = implementations() if functions is None else functions
        made = callbacks(plugin, functions)
        self.codes = frozenset(map(attrgetter("__code__"), made.values()))
        """Code objects of the functions that C calls."""
        self._kept = {name: abi.CALLBACK(callback) for name, callback in made.items()}
        self.slots = {name: _address(callback) for name, callback in self._kept.items()}
        shared = {"ready_event": plugin.ready_event, "refusal": plugin.last_error}
        self.native = native.load(made, shared, compiler)
        if self.native is not None:
            self.slots |= self.native.entries | (self.native.stubs if native_stubs else {})
            if native_stubs:
                plugin.values.use_list(self.native.destroyed, self.native.take_destroyed)
                plugin.values.bare = self.native.short_runs
        plugin.deleter, plugin.nothing = self.slots[DELETER], self.slots[getters.NOTHING]
        self.layouts = layouts.extension(self.slots)
        self.profiler = profiler.extension(self.slots)
        self.layouts.next = ctypes.addressof(self.profiler)
        self.api = self._api()

    def close(self) -> None:
        """Lets only the main thread into Python from now on, as the process ends."""
        if self.native is not None:
            self.native.close()

    def replace(self, functions: Mapping[str, Call]) -> None:
        """Lets calls be served by other functions from now on."""
        for name, function in functions.items():
            callback = guarded(self.plugin, view(name), name, function)
            if self.native is not None:
                self.native.redirect(name, callback)
            else:
                self._kept[name] = abi.CALLBACK(callback)
                setattr(self.api, name, _address(self._kept[name]))

    def _api(self) -> abi.Api:
        api = abi.Api()
        api.struct_size = ctypes.sizeof(abi.Api)
        api.extension_start = ctypes.addressof(self.layouts)
        api.version_size = 24
        api.major_version, api.minor_version = abi.API_VERSION
        for name in abi.CALLS:
            setattr(api, name, self.slots[name])
        return api


class Lent(ctypes.Structure):
    """What a deleter gets: the handle itself, so the record has no fields."""


def _delete_lent(plugin: Plugin, lent: Lent) -> None:
    plugin.handles.drop(ctypes.addressof(lent))


def _address(callback: Any) -> int:
    return ctypes.cast(callback, ctypes.c_void_p).value or 0
