"""A process that ``os.fork`` made of one that uses the platform: its work is refused at once.

The threads that compute stayed behind, so a program would never end. Calls that need them are
replaced in the child's table; nothing is looked at before a call. Values that are there are read.
"""

from __future__ import annotations

from typing import Any, NoReturn

import jax

from neuronjax.errors import ForkedProcessError
from neuronjax.pjrt.plugin_state import Plugin
from neuronjax.pjrt.table import Table

REFUSED = (
    "Client_Create", "Client_Compile", "Compile", "Executable_DeserializeAndLoad",
    "LoadedExecutable_Execute", "Client_BufferFromHostBuffer", "Client_CreateUninitializedBuffer",
    "Client_CreateBuffersForAsyncHostToDevice", "Buffer_CopyToDevice", "Buffer_CopyToMemory",
)  # fmt: skip
"""Calls that compute, or move data."""

_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
"""What JAX tells listeners before it compiles."""


def refuse_work(table: Table) -> None:
    """Makes calls of a table that was in use fail in a forked child, and so values that were still
    being computed."""
    if table.native is not None:
        table.native.forget_threads()
    table.plugin.loading.forget_threads()
    if not table.plugin.clients:
        return
    table.replace(dict.fromkeys(REFUSED, _refuse))
    jax.monitoring.register_event_duration_secs_listener(_refuse_compilation)
    for value in list(table.plugin.values.values.values()):
        if value.array is not None and not value.array.is_ready():
            value.fail(_error())


def _refuse(plugin: Plugin, args: Any) -> NoReturn:
    raise _error()


def _refuse_compilation(event: str, *_: Any, **__: Any) -> None:
    """JAX's own threads for compilation are missing, too: its call would not get here."""
    if event == _LOWERED:
        raise _error()


def _error() -> ForkedProcessError:
    return ForkedProcessError(
        "this process was forked from one that uses the neuron platform. Its worker threads did "
        "not survive the fork, so nothing can run here. Start processes with "
        "multiprocessing.get_context('spawn'), or fork before JAX is used."
    )
