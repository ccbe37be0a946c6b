"""Entry point of the plugin: JAX calls ``initialize`` when it looks for platforms."""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
from functools import partial
from typing import Any

import jax

from neuronjax import options
from neuronjax.jaxlib_api import coordinator, platforms
from neuronjax.pjrt import interrupt, lowering
from neuronjax.pjrt.client_state import PLATFORM_NAME
from neuronjax.pjrt.fork import refuse_work
from neuronjax.pjrt.guard import CALLBACK_CODES
from neuronjax.pjrt.plugin_state import Plugin
from neuronjax.pjrt.program_text import engine_text
from neuronjax.pjrt.table import Table

PRIORITY = -100
"""Below JAX's own platforms: installing the package must not take over anybody's CPU or GPU."""

_tables: list[Table] = []


def initialize() -> None:
    """Registers platform ``neuron`` with JAX; selected by ``JAX_PLATFORMS=neuron``."""
    chosen = options.load()
    logging.getLogger("neuronjax").setLevel(chosen.log_level.upper())
    table = Table(Plugin(watched=chosen.stress is not None), chosen.native_stubs)
    _tables.append(table)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(table))
    capsule = _capsule(table)
    platforms.register(PLATFORM_NAME, PRIORITY, capsule)
    lowering.register()
    platforms.compile_topologies_apart(PLATFORM_NAME)
    platforms.show_programs(partial(engine_text, table.plugin))
    if PLATFORM_NAME in _platforms():
        _keep_cpu_beside_neuron()
        _hold_interrupts()
    else:  # nobody asked for the platform yet
        table.plugin.first_run = _hold_interrupts
    os.register_at_fork(after_in_child=partial(refuse_work, table))
    atexit.register(table.close)  # after every run that is pending: its waiter is joined before
    atexit.register(_part_from_processes, table.plugin)


def _part_from_processes(plugin: Plugin) -> None:
    """Tells other processes of the end, and waits for none where one of them has died."""
    jobs = [state.client.job for state in plugin.clients]
    for job in jobs:
        job.close()
    if any(job.has_failed for job in jobs):
        for kept in coordinator.leave():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _platforms() -> list[str]:
    return (jax.config.jax_platforms or "").split(",")


def _hold_interrupts() -> None:
    interrupt.install(CALLBACK_CODES)


def _keep_cpu_beside_neuron() -> None:
    """``JAX_PLATFORMS=neuron`` alone also gets ``cpu``: JAX places callbacks' operands there."""
    if "cpu" not in _platforms():
        jax.config.update("jax_platforms", ",".join([*_platforms(), "cpu"]))


def tables() -> tuple[Table, ...]:
    """The live tables, for tests that look at handles and generated code."""
    return tuple(_tables)


def _capsule(table: Table) -> Any:
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return make(ctypes.addressof(table.api), b"pjrt_c_api", None)
