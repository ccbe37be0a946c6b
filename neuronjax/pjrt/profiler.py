"""The Profiler extension: while `jax.profiler` traces, runs are recorded, and become its planes.

JAX makes a profiler for each of its sessions, starts and stops it, and asks for its data: what its
own profiler writes to ``plugins/profile/<time>/`` then has the simulated device beside the host.
Source: ``xla/backends/profiler/plugin/profiler_c_api.h``, version 1, and the C API's
``PJRT_Profiler_Extension``.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from neuronjax.lazy import Lazy
from neuronjax.pjrt import abi
from neuronjax.pjrt.plugin_state import Plugin
from neuronjax.runtime.client import Client

if TYPE_CHECKING:
    from neuronjax.profiling import events, xspace
    from neuronjax.runtime import recording
else:
    events = Lazy("neuronjax.profiling.events")
    xspace = Lazy("neuronjax.profiling.xspace")
    recording = Lazy("neuronjax.runtime.recording")

ERROR_CALLS = ("Error_Destroy", "Error_Message", "Error_GetCode")
"""Slots of ``PLUGIN_Profiler_Api`` after its size and a private word: as in the C API."""

CALLS: dict[str, str] = {
    "Profiler_Create": "struct_size:z options:p options_size:z profiler:p",
    "Profiler_Destroy": "struct_size:z profiler:p",
    "Profiler_Start": "struct_size:z profiler:p",
    "Profiler_Stop": "struct_size:z profiler:p",
    "Profiler_CollectData": "struct_size:z profiler:p buffer:p buffer_size_in_bytes:z",
}
"""The slots that follow, in order."""


class Session:
    """What runs on the machines of a process from `start` to `stop`."""

    def __init__(self) -> None:
        self._recordings: list[tuple[Client, recording.Recording]] = []
        self._start_ns = 0
        self.data: Any = ctypes.create_string_buffer(0)

    def start(self, clients: Iterable[Client]) -> None:
        """Records runs of those clients that simulate (option ``simulate``)."""
        self._start_ns = time.time_ns()
        for client in clients:
            if client.options.simulate:
                runs = client.new_recording()
                client.observers.append(runs)
                self._recordings.append((client, runs))

    def stop(self) -> None:
        """Ends it; what was recorded is kept."""
        for client, runs in self._recordings:
            if runs in client.observers:
                client.observers.remove(runs)

    def collect(self) -> None:
        """Times the programs that ran: `data` becomes an XSpace of them."""
        profiles = (runs.profile() for _, runs in self._recordings)
        spaces = (
            xspace.encoded(events.trace(profile, with_host=False), self._start_ns)
            for profile in profiles
            if profile.runs
        )
        self.data = ctypes.create_string_buffer(b"".join(spaces))


def Profiler_Create(plugin: Plugin, args: Any) -> None:
    args.profiler = plugin.handles.add(Session())


def Profiler_Destroy(plugin: Plugin, args: Any) -> None:
    session = plugin.handles.drop(args.profiler)
    if session is not None:
        session.stop()


def Profiler_Start(plugin: Plugin, args: Any) -> None:
    plugin.handles[args.profiler].start(state.client for state in plugin.clients)


def Profiler_Stop(plugin: Plugin, args: Any) -> None:
    plugin.handles[args.profiler].stop()


def Profiler_CollectData(plugin: Plugin, args: Any) -> None:
    """The bytes are the session's until it is destroyed."""
    session = plugin.handles[args.profiler]
    session.collect()
    args.buffer = ctypes.addressof(session.data)
    args.buffer_size_in_bytes = len(session.data) - 1


def calls() -> dict[str, tuple[Any, Callable[[Plugin, Any], None]]]:
    """Argument structure and function of every call of the extension."""
    return {name: (abi.structure(name, spec), globals()[name]) for name, spec in CALLS.items()}


class Extension(ctypes.Structure):
    """``PJRT_Profiler_Extension``, and the table that it points to."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("type", ctypes.c_int32),
        ("next", ctypes.c_void_p),
        ("profiler_api", ctypes.c_void_p),
        ("traceme_context_id", ctypes.c_int64),
    )


def extension(addresses: Mapping[str, int]) -> Extension:
    """The extension record, with the addresses of `ERROR_CALLS` and `CALLS` by name."""
    names = (*ERROR_CALLS, *CALLS)
    table = (ctypes.c_uint64 * (2 + len(names)))(0, 0, *(addresses[name] for name in names))
    table[0] = ctypes.sizeof(table)
    record = Extension(ctypes.sizeof(Extension), abi.EXTENSION_PROFILER)
    record.table = table
    record.profiler_api = ctypes.addressof(table)
    return record
