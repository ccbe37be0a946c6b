"""Machine code around the Python callbacks: compiled here, described in ``native_ir.py``.

LLVM compiles the description when the platform is first used, for whatever host this is. Where a
host refuses executable memory, the Python callbacks answer alone: correct, but for what ctypes
cannot do. CPython checks the result of every callback before C gets it back, so a callback of
ctypes cannot leave an exception pending that was pending before: one on its way up is lost if
arrays die by it.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from llvmlite import binding as llvm

from neuronjax.pjrt import abi, layouts, profiler
from neuronjax.pjrt.getters import NOTHING
from neuronjax.pjrt.guard import Callback
from neuronjax.pjrt.native_ir import (
    DELETER,
    EXECUTE,
    FIXED_WORDS,
    FROM_CODE,
    STUBS,
    description,
)
from neuronjax.pjrt.short_run import ShortRuns
from neuronjax.pjrt.short_run_ir import FUNCTIONS, NAMES

logger = logging.getLogger("neuronjax")

_TAKE = ctypes.PYFUNCTYPE(ctypes.c_uint64)  # keeps the interpreter's lock: it is an instruction

_END_SECONDS = 30
"""How long the end of the process waits for threads that are inside a call."""


def entries() -> tuple[str, ...]:
    """The names of the Python callbacks, in the order of the table."""
    return (*abi.CALLS, *FROM_CODE, DELETER, NOTHING, *layouts.CALLS, *profiler.CALLS)


class Code(Protocol):
    """Functions in executable memory, which ends with this object."""

    addresses: dict[str, int]


class Compiled:
    """The description compiled by LLVM for this host."""

    def __init__(self, table: int) -> None:
        """``table`` is the address of the words that the code reads.

        Raises:
          RuntimeError: LLVM cannot compile for this host, or may not.
        """
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        module = llvm.parse_assembly(description(entries()))
        machine = llvm.Target.from_default_triple().create_target_machine(opt=0, jit=True)
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.add_global_mapping(module.get_global_variable("table"), table)
        self._engine.finalize_object()
        self.addresses = {
            function.name: self._engine.get_function_address(function.name)
            for function in module.functions
        }


Compiler = Callable[[int], Code]
"""Makes code whose table is at an address."""


class NativeCode:
    """The code in this process, with its table; must never be freed."""

    def __init__(
        self,
        callbacks: Mapping[str, Callback],
        handles: Mapping[str, int],
        compiler: Compiler,
    ) -> None:
        """``callbacks`` are functions by the names of ``entries()``, ``handles`` the addresses of
        the shared event and error by the names of the table's words.

        Raises:
          RuntimeError: the compiler has no code for this host.
        """
        words = {**_python_words(), **handles}
        order = entries()
        self._table = (ctypes.c_uint64 * (len(FIXED_WORDS) + len(order)))()
        address = ctypes.addressof(self._table)
        self._code = compiler(address)
        functions = self._code.addresses
        words |= {name: functions[name] for name in ("enter", "run_short")}
        self._at = {name: index for index, name in enumerate((*FIXED_WORDS, *order))}
        self._callbacks: dict[str, Callback] = {}
        self._former: list[Callback] = []
        for name, word in words.items():
            self._table[self._at[name]] = word
        for name, callback in callbacks.items():
            self.redirect(name, callback)
        self.entries = {name: functions[f"enter_{name}"] for name in order}
        """Ways into the Python callbacks."""
        self.stubs = {name: functions[f"call_{name}"] for name in STUBS}
        """Answers without Python."""
        self.destroyed = address + 8 * self._at["destroyed"]
        """Address of the word with the first of the destroyed small values."""
        self.take_destroyed = _TAKE(functions["take_destroyed"])
        """Returns that word and leaves none."""
        self.short_runs = ShortRuns(
            {name: address + 8 * at for name, at in self._at.items()}, functions
        )
        """Runs of programs without Python, once they are planned."""

    def redirect(self, name: str, callback: Callback) -> None:
        """Leads a call into another Python callback from now on; runs no longer go the short way
        if theirs is led elsewhere."""
        before = self._callbacks.get(name)
        self._callbacks[name] = callback
        self._table[self._at[name]] = id(callback)  # CPython's address of an object
        if before is not None:  # a thread may be about to call it
            self._former.append(before)
            if name == EXECUTE:
                self._table[self._at["run_short"]] = 0

    def forget_threads(self) -> None:
        """Forgets all threads but this one: a forked child has one, the main one."""
        self._table[self._at["inside"]] = 0
        self._table[self._at["main_thread"]] = threading.get_ident()

    def close(self) -> None:
        """Lets nobody in any more but the main thread, and waits for those who are inside.

        From then on no other thread can be in Python, or on its way into it, through a call.
        """
        self._table[self._at["closed"]] = 1
        end = time.monotonic() + _END_SECONDS
        while self._table[self._at["inside"]]:
            if time.monotonic() > end:
                logger.warning("the process ends while threads still wait in calls of the platform")
                return
            time.sleep(0.0005)


def load(
    callbacks: Mapping[str, Callback], handles: Mapping[str, int], compiler: Compiler = Compiled
) -> NativeCode | None:
    """The code for these callbacks; ``None`` where there is none for this host."""
    try:
        return NativeCode(callbacks, handles, compiler)
    except (OSError, RuntimeError) as error:
        logger.warning(
            "LLVM cannot make machine code here, so ctypes answers alone: slower, and an exception "
            "may come out as SystemError if it destroys arrays on its way up (%s)",
            error,
        )
        return None


def _python_words() -> dict[str, int]:
    """Addresses of what the code calls in Python."""
    public = hasattr(ctypes.pythonapi, "Py_IsFinalizing")  # from Python 3.13 on
    names = {
        "thread_ident": "PyThread_get_thread_ident",
        "is_finalizing": "Py_IsFinalizing" if public else "_Py_IsFinalizing",
        "ensure": "PyGILState_Ensure",
        "fetch": "PyErr_Fetch",
        "restore": "PyErr_Restore",
        "release": "PyGILState_Release",
        "number_of": "PyLong_FromVoidPtr",
        "address_of": "PyLong_AsVoidPtr",
        "call": "PyObject_CallOneArg",
        "drop": "Py_DecRef",
        "clear": "PyErr_Clear",
        **FUNCTIONS,
    }
    words = {
        word: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0
        for word, name in names.items()
    }
    words |= {f"name_{name}": id(sys.intern(name)) for name in NAMES}
    objects = {"none": id(None), "true": id(True)}
    return words | objects | {"main_thread": threading.main_thread().ident or 0}
