"""The plugin of this process: made when the platform is used for the first time."""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import threading
from functools import partial
from typing import Any

from neuronjax import options
from neuronjax.jaxlib_api import coordinator, platforms
from neuronjax.pjrt import last_words, lowering
from neuronjax.pjrt.fork import refuse_work
from neuronjax.pjrt.interrupt import Interrupts
from neuronjax.pjrt.notebook import watch_cells
from neuronjax.pjrt.plugin_state import Plugin
from neuronjax.pjrt.table import Table

_tables: list[Table] = []
_starting = threading.Lock()

lowering_rules = lowering.rules


def make_client() -> Any:
    """JAX's client of the platform.

    Raises:
      ConfigurationError: a variable or a call of ``neuronjax.configure`` has a wrong value.
      jax.errors.JaxRuntimeError: the machine that they describe does not exist.
    """
    try:
        start()
        return platforms.make_client()
    except Exception as error:
        last_words.end_with_reason(error)
        raise


def make_topology(name: str = "", **options: Any) -> Any:
    """Devices of a machine to compile for, called ``name`` as in ``NEURONJAX_TARGET``.

    Raises: as ``make_client``.
    """
    return platforms.make_topology(capsule(start()), name, **options)


def tables() -> tuple[Table, ...]:
    """The table of this process, if there is one: for its clients, and for tests."""
    return tuple(_tables)


def start() -> Table:
    """The table of PJRT functions that jaxlib calls; it lives as long as the process."""
    with _starting:
        if not _tables:
            chosen = options.load()
            logging.getLogger("neuronjax").setLevel(chosen.log_level.upper())
            table = Table(Plugin(watched=chosen.stress is not None), chosen.native_stubs)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(table))
            platforms.load(capsule(table))
            _tables.append(table)
            interrupts = Interrupts(table.codes)
            if not interrupts.install():
                table.plugin.first_run = interrupts.install
            watch_cells(interrupts, partial(_num_pending, table.plugin))
            os.register_at_fork(after_in_child=partial(refuse_work, table))
            _prepare_end(table)
        return _tables[0]


def _num_pending(plugin: Plugin) -> int:
    return sum(len(state.client.waiters) for state in plugin.clients)


def _prepare_end(table: Table) -> None:
    """Has the end of the process prepared after every run that is pending: its waiter is joined
    before."""
    table.plugin.going_on = None
    atexit.register(_end, table)


def _end(table: Table) -> None:
    """Parts from other processes, and lets nobody but the main thread into Python any more.

    Some run the exit functions by themselves, such as tests of what a library does in them, and go
    on: then JAX makes a new client, and the end is yet to come.
    """
    if threading.main_thread().is_alive():
        table.plugin.going_on = partial(_prepare_end, table)
        return
    _part_from_processes(table.plugin)
    try:
        table.plugin.loading.end()
    finally:
        table.close()


def _part_from_processes(plugin: Plugin) -> None:
    """Tells other processes of the end, and waits for none where one of them has died."""
    jobs = [state.client.job for state in plugin.clients]
    for job in jobs:
        job.close()
    if any(job.has_failed for job in jobs):
        for kept in coordinator.leave():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def capsule(table: Table) -> Any:
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return make(ctypes.addressof(table.api), b"pjrt_c_api", None)
