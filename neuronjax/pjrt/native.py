"""Machine code around the Python callbacks: loaded here, described in ``native_ir.py``.

The code for the architectures that jaxlib has wheels for comes with the package, compiled by LLVM
from the description (``native_build.py``). On other hosts it is compiled at the start where
llvmlite is installed. Hosts that have neither, or refuse executable pages, use the Python callbacks
alone.
"""

from __future__ import annotations

import base64
import ctypes
import importlib
import importlib.util
import json
import logging
import mmap
import platform
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from neuronjax.pjrt import abi, layouts, profiler
from neuronjax.pjrt.native_ir import (
    BUFFER_DESTROY_LAST,
    DELETER,
    FIXED_WORDS,
    NOTHING,
    STUBS,
    description,
)

logger = logging.getLogger("neuronjax")

CODE_FILE = Path(__file__).with_name("native_code.json")

_ARCHITECTURES = {"x86_64": "x86_64", "AMD64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
"""``platform.machine()`` -> architecture in the code file."""

RELOCATIONS: dict[str, tuple[int, int | None]] = {
    "word": (1, None),  # R_X86_64_64: eight bytes
    "bits 0-15": (264, 0),  # R_AARCH64_MOVW_UABS_G0_NC and so on: 16 bits of a movz or movk
    "bits 16-31": (266, 16),
    "bits 32-47": (268, 32),
    "bits 48-63": (269, 48),
}
"""Where code holds the table's address: number of the ELF relocation, and the first bit of it that
an instruction takes; ``None`` for the whole."""

_END_SECONDS = 30
"""How long the end of the process waits for threads that are inside a call."""


def entries() -> tuple[str, ...]:
    """The names of the Python callbacks, in the order of the table."""
    return (*abi.CALLS, BUFFER_DESTROY_LAST, DELETER, NOTHING, *layouts.CALLS, *profiler.CALLS)


class Code(Protocol):
    """Functions in executable memory, which ends with this object."""

    addresses: dict[str, int]


Source = Callable[[int], Code | None]
"""Code for this host whose table is at an address, if there is any."""


class NativeCode:
    """The code in this process, with its table; must never be freed."""

    def __init__(
        self,
        callbacks: Mapping[str, int],
        handles: Mapping[str, int],
        sources: Sequence[Source] | None = None,
    ) -> None:
        """``callbacks`` are addresses by the names of ``entries()``, ``handles`` those of the
        shared event and error by the names of the table's words; the first of ``sources`` that has
        code for this host is used.

        Raises:
          OSError: there is no code for this host, or the host refuses executable pages.
        """
        words = {**_python_words(), **handles}
        order = entries()
        self._table = (ctypes.c_uint64 * (len(FIXED_WORDS) + len(order)))()
        address = ctypes.addressof(self._table)
        found = (source(address) for source in sources or SOURCES)
        self._code = next((code for code in found if code is not None), None)
        if self._code is None:
            raise OSError(f"there is no machine code for {platform.machine()} on {sys.platform}")
        functions = self._code.addresses
        words["enter"] = functions["enter"]
        self._at = {name: index for index, name in enumerate((*FIXED_WORDS, *order))}
        for name, word in {**words, **callbacks}.items():
            self._table[self._at[name]] = word
        self.entries = {name: functions[f"enter_{name}"] for name in order}
        """Ways into the Python callbacks."""
        self.stubs = {name: functions[f"call_{name}"] for name in STUBS}
        """Answers without Python."""

    def redirect(self, name: str, callback: int) -> None:
        """Leads a call into another Python callback from now on."""
        self._table[self._at[name]] = callback

    def forget_threads(self) -> None:
        """For a forked child, which has one thread: the main one."""
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
    callbacks: Mapping[str, int],
    handles: Mapping[str, int],
    sources: Sequence[Source] | None = None,
) -> NativeCode | None:
    """The code for these callbacks; ``None`` where there is none for this host."""
    try:
        return NativeCode(callbacks, handles, sources)
    except (OSError, ValueError) as error:
        logger.info("every PJRT call is answered by ctypes alone: %s", error)
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
    }
    words = {
        word: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0
        for word, name in names.items()
    }
    return words | {"main_thread": threading.main_thread().ident or 0}


class _Shipped:
    """Code of the package in executable memory."""

    def __init__(self, code: bytes, offsets: Mapping[str, int]) -> None:
        """Raises ``OSError`` or ``ValueError`` where the host refuses executable pages."""
        self._page = mmap.mmap(-1, len(code), prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self._page.write(code)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protection = mmap.PROT_READ | mmap.PROT_EXEC
        if protect(ctypes.c_void_p(base), ctypes.c_size_t(len(code)), protection):
            raise OSError(ctypes.get_errno(), "executable pages are refused")
        self.addresses = {name: base + at for name, at in offsets.items()}


def shipped(table: int) -> Code | None:
    """The package's code for this host, if there is any."""
    record = shipped_code()["architectures"].get(_ARCHITECTURES.get(platform.machine()))
    if record is None or sys.platform not in ("linux", "darwin"):
        return None
    return _Shipped(linked(record, table), record["functions"])


@cache
def shipped_code() -> dict[str, Any]:
    """What ``native_build`` wrote."""
    return json.loads(CODE_FILE.read_text())


def linked(record: Mapping[str, Any], table: int) -> bytes:
    """The code of an architecture with the address of the table in its places."""
    code = bytearray(base64.b64decode(record["code"]))
    for at, kind, addend in record["table"]:
        _, first_bit = RELOCATIONS[kind]
        value = table + addend
        if first_bit is None:
            code[at : at + 8] = value.to_bytes(8, "little")
        else:
            instruction = int.from_bytes(code[at : at + 4], "little")
            instruction |= (value >> first_bit & 0xFFFF) << 5
            code[at : at + 4] = instruction.to_bytes(4, "little")
    return bytes(code)


def compiled_now(table: int) -> Code | None:
    """Code that LLVM makes for this host, if llvmlite is installed."""
    if importlib.util.find_spec("llvmlite") is None:
        return None
    build = importlib.import_module("neuronjax.pjrt.native_build")
    return build.Jitted(description(entries()), table)


SOURCES: tuple[Source, ...] = (shipped, compiled_now)
"""Where code comes from: the first that has some is taken. Shipped code costs no compilation."""
