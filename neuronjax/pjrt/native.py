"""Machine code for the hottest calls, generated at start: no compiled code is shipped.

JAX asks every result of every call for its device, memory and memory kind, waits for it and
destroys it. Each of these is a few loads from a record of known layout (``values.py``), so a page
of generated code answers them without the interpreter. Where a record does not hold the answer the
code jumps to the Python callback. The instruction sets are in ``code_x86_64`` and ``code_aarch64``;
hosts of another kind, or that refuse executable pages, use the Python callbacks alone.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
from dataclasses import dataclass
from types import ModuleType

from neuronjax.pjrt import abi, code_aarch64, code_x86_64
from neuronjax.pjrt.plugin_state import EVENT_READY, EVENT_STATIC
from neuronjax.pjrt.values import offset

INSTRUCTION_SETS: dict[str, ModuleType] = {
    "x86_64": code_x86_64,
    "AMD64": code_x86_64,
    "aarch64": code_aarch64,
    "arm64": code_aarch64,
}
"""``platform.machine()`` -> code generator."""


def instruction_set() -> ModuleType | None:
    """The code generator for this host; ``None`` if there is none."""
    if sys.platform not in ("linux", "darwin"):
        return None
    return INSTRUCTION_SETS.get(platform.machine())


def _field(call: str, field: str) -> int:
    return getattr(abi.args(call), field).offset


def _python_api(name: str) -> int:
    function = getattr(ctypes.pythonapi, name)
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def into_python(code: ModuleType, callback: int) -> bytes:
    """A call of a Python callback, with two things that ctypes leaves out.

    A pending Python exception is put aside meanwhile: one on its way up drops frames and with them
    arrays, whose buffers JAX then destroys while the exception is set. And once the interpreter is
    shutting down the call does nothing: a thread of JAX that asked for the interpreter then would
    be ended in the middle of its work, and whoever joins it would wait for ever.
    """
    public = hasattr(ctypes.pythonapi, "Py_IsFinalizing")  # from Python 3.13 on
    return code.bracket(
        callback,
        closed=_python_api("Py_IsFinalizing" if public else "_Py_IsFinalizing"),
        ensure=_python_api("PyGILState_Ensure"),
        fetch=_python_api("PyErr_Fetch"),
        restore=_python_api("PyErr_Restore"),
        release=_python_api("PyGILState_Release"),
    )


@dataclass(frozen=True)
class Slow:
    """Addresses of the Python callbacks that the generated code falls back to."""

    buffer_destroy_last: int
    by_call: dict[str, int]


_GETTERS: dict[str, tuple[tuple[str, int, int], ...]] = {
    "Buffer_Device": (("device", offset("device"), 8),),
    "Buffer_Memory": (("memory", offset("memory"), 8),),
    "Buffer_ElementType": (("type", offset("type"), 4),),
    "Buffer_Dimensions": (("dims", offset("dims"), 8), ("num_dims", offset("rank"), 8)),
    "Buffer_UnpaddedDimensions": (
        ("unpadded_dims", offset("dims"), 8),
        ("num_dims", offset("rank"), 8),
    ),
    "Buffer_IsDeleted": (("is_deleted", offset("deleted"), 1),),
    "Memory_Kind": (("kind", 0, 8), ("kind_size", 8, 8)),
    "Executable_NumReplicas": (("num_replicas", 0, 8),),
    "Executable_NumPartitions": (("num_partitions", 8, 8),),
    "Executable_NumOutputs": (("num_outputs", 16, 8),),
}
"""Call -> fields: (name in the arguments, offset in the object's record, width)."""


def stubs(code: ModuleType, slow: Slow, ready_event: int) -> dict[str, bytes]:
    """Code by call."""
    found = {
        call: code.getter([(at, _field(call, name), width) for name, at, width in fields])
        for call, fields in _GETTERS.items()
    }
    null, slot = code.RETURN_NULL, slow.by_call
    event = code.store_pointer(ready_event, _field("Buffer_ReadyEvent", "event"))
    is_ready = code.store_true(_field("Event_IsReady", "is_ready"))
    on_ready = code.call_back(
        _field("Event_OnReady", "callback"), _field("Event_OnReady", "user_arg")
    )
    flagged = {
        "Buffer_ReadyEvent": (offset("ready"), event + null),
        "Event_IsReady": (EVENT_READY, is_ready + null),
        "Event_Error": (EVENT_READY, null),
        "Event_Await": (EVENT_READY, null),
        "Event_OnReady": (EVENT_READY, on_ready),
        "Event_Destroy": (EVENT_STATIC, null),
    }
    for call, (flag, then) in flagged.items():
        found[call] = code.if_flag(flag, then, slot[call])
    found["Error_Destroy"] = code.if_object(slot["Error_Destroy"])
    found["Buffer_Destroy"] = code.count_down(
        offset("back"), offset("live"), slow.buffer_destroy_last
    )
    return found


def install(code: ModuleType, pieces: dict[str, bytes]) -> tuple[mmap.mmap, dict[str, int]] | None:
    """Puts code into executable memory: the page, to be kept for ever, and addresses by name.

    Returns ``None`` where the host refuses executable pages.
    """
    pad = code.PADDING
    aligned = {name: body + pad * (-len(body) % 16 // len(pad)) for name, body in pieces.items()}
    text = b"".join(aligned.values())
    try:
        page = mmap.mmap(-1, len(text), prot=mmap.PROT_READ | mmap.PROT_WRITE)
        page.write(text)
        base = ctypes.addressof(ctypes.c_char.from_buffer(page))
        libc = ctypes.CDLL(None, use_errno=True)
        protection = mmap.PROT_READ | mmap.PROT_EXEC
        if libc.mprotect(ctypes.c_void_p(base), ctypes.c_size_t(len(text)), protection):
            return None
    except (OSError, ValueError):
        return None
    addresses, position = {}, base
    for name, body in aligned.items():
        addresses[name] = position
        position += len(body)
    return page, addresses
