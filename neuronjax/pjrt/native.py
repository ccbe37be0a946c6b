"""Machine code for the hottest calls, generated at start: no compiled code is shipped.

JAX asks every result of every call for its device, memory and memory kind, waits for it and
destroys it. Each of these is a few loads from a record of known layout (``values.py``), so a page
of generated code answers them without the interpreter. Where a record does not hold the answer the
code jumps to the Python callback. Hosts other than x86-64 with the System V calling convention, or
ones that refuse executable pages, use the Python callbacks alone.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from dataclasses import dataclass

from neuronjax.pjrt import abi
from neuronjax.pjrt.plugin_state import EVENT_READY, EVENT_STATIC
from neuronjax.pjrt.values import offset

_OBJECT = 16
"""Every argument record has its object right behind the two header words."""

_RETURN_NULL = b"\x31\xc0\xc3"  # xor eax, eax; ret
_LOAD_OBJECT = b"\x48\x8b\x47" + bytes([_OBJECT])  # mov rax, [rdi + 16]


def _field(call: str, field: str) -> int:
    return getattr(abi.args(call), field).offset


def _copy(width: int, source: int, destination: int) -> bytes:
    """[rdi + destination] = [rax + source], 8, 4 or 1 bytes, through rcx."""
    load = {8: b"\x48\x8b\x48", 4: b"\x8b\x48", 1: b"\x0f\xb6\x48"}[width]
    store = {8: b"\x48\x89\x4f", 4: b"\x89\x4f", 1: b"\x88\x4f"}[width]
    return load + bytes([source]) + store + bytes([destination])


def _getter(call: str, *fields: tuple[str, int, int]) -> bytes:
    """Copies fields of the object's record (name in the arguments, offset, width)."""
    copies = b"".join(_copy(width, source, _field(call, name)) for name, source, width in fields)
    return _LOAD_OBJECT + copies + _RETURN_NULL


def _if_flag(flag: int, then: bytes, otherwise: int) -> bytes:
    """``then`` if the byte ``flag`` of the object's record is set, else a jump to a function."""
    test = b"\x80\x78" + bytes([flag, 0])  # cmp byte [rax + flag], 0
    skip = b"\x74" + bytes([len(then)])  # je
    return _LOAD_OBJECT + test + skip + then + _jump(otherwise)


def _if_object(then: int) -> bytes:
    """A jump to a function unless the object is NULL."""
    test = b"\x48\x85\xc0\x75" + bytes([len(_RETURN_NULL)])  # test rax, rax; jne
    return _LOAD_OBJECT + test + _RETURN_NULL + _jump(then)


def _jump(address: int) -> bytes:
    return b"\x48\xb8" + struct.pack("<Q", address) + b"\xff\xe0"  # mov rax, imm; jmp rax


def _buffer_destroy(last: int) -> bytes:
    """Counts the value's live shards down in the record of shard 0; ``last`` ends the value."""
    return (
        _LOAD_OBJECT
        + b"\x48\x8b\x48" + bytes([offset("back")])  # mov rcx, [rax + back]
        + b"\x48\x29\xc8"  # sub rax, rcx
        + b"\xf0\x48\x83\x68" + bytes([offset("live"), 1])  # lock sub qword [rax + live], 1
        + b"\x74" + bytes([len(_RETURN_NULL)])  # je
        + _RETURN_NULL
        + _jump(last)
    )  # fmt: skip


def _store_pointer(value: int, destination: int) -> bytes:
    """[rdi + destination] = value."""
    return b"\x48\xb9" + struct.pack("<Q", value) + b"\x48\x89\x4f" + bytes([destination])


def _call_back(call: str) -> bytes:
    """callback(NULL, user_arg), on an aligned stack."""
    return (
        b"\x48\x8b\x47" + bytes([_field(call, "callback")])  # mov rax, [rdi + callback]
        + b"\x48\x8b\x77" + bytes([_field(call, "user_arg")])  # mov rsi, [rdi + user_arg]
        + b"\x31\xff"  # xor edi, edi
        + b"\x48\x83\xec\x08\xff\xd0\x48\x83\xc4\x08"  # sub rsp, 8; call rax; add rsp, 8
        + _RETURN_NULL
    )  # fmt: skip


def _call(address: int) -> bytes:
    return b"\x48\xb8" + struct.pack("<Q", address) + b"\xff\xd0"  # mov rax, imm; call rax


def _python_api(name: str) -> int:
    function = getattr(ctypes.pythonapi, name)
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def keeping_exception(callback: int) -> bytes:
    """A call of a Python callback that puts a pending Python exception aside meanwhile.

    An exception on its way up drops frames and with them arrays; JAX then destroys their buffers
    while the exception is set, and ctypes runs callbacks without saving it.
    """
    return (
        b"\x53\x41\x54\x41\x55"  # push rbx; push r12; push r13
        b"\x48\x83\xec\x20"  # sub rsp, 32: type, value, traceback
        b"\x48\x89\xfb"  # mov rbx, rdi
        + _call(_python_api("PyGILState_Ensure"))
        + b"\x41\x89\xc4"  # mov r12d, eax
        b"\x48\x89\xe7"  # mov rdi, rsp
        b"\x48\x8d\x74\x24\x08"  # lea rsi, [rsp + 8]
        b"\x48\x8d\x54\x24\x10"  # lea rdx, [rsp + 16]
        + _call(_python_api("PyErr_Fetch"))
        + b"\x48\x89\xdf"  # mov rdi, rbx
        + _call(callback)
        + b"\x49\x89\xc5"  # mov r13, rax
        b"\x48\x8b\x3c\x24"  # mov rdi, [rsp]
        b"\x48\x8b\x74\x24\x08"  # mov rsi, [rsp + 8]
        b"\x48\x8b\x54\x24\x10"  # mov rdx, [rsp + 16]
        + _call(_python_api("PyErr_Restore"))
        + b"\x44\x89\xe7"  # mov edi, r12d
        + _call(_python_api("PyGILState_Release"))
        + b"\x4c\x89\xe8"  # mov rax, r13
        b"\x48\x83\xc4\x20"  # add rsp, 32
        b"\x41\x5d\x41\x5c\x5b\xc3"  # pop r13; pop r12; pop rbx; ret
    )


@dataclass(frozen=True)
class Slow:
    """Addresses of the Python callbacks that the generated code falls back to."""

    buffer_destroy_last: int
    by_call: dict[str, int]


def stubs(slow: Slow, ready_event: int) -> dict[str, bytes]:
    """Code by call, for x86-64."""
    dims = (("num_dims", offset("rank"), 8),)
    is_ready = b"\xc6\x47" + bytes([_field("Event_IsReady", "is_ready"), 1])  # mov byte [...], 1
    event = _store_pointer(ready_event, _field("Buffer_ReadyEvent", "event"))
    slot = slow.by_call
    return {
        "Buffer_Device": _getter("Buffer_Device", ("device", offset("device"), 8)),
        "Buffer_Memory": _getter("Buffer_Memory", ("memory", offset("memory"), 8)),
        "Buffer_ElementType": _getter("Buffer_ElementType", ("type", offset("type"), 4)),
        "Buffer_Dimensions": _getter("Buffer_Dimensions", ("dims", offset("dims"), 8), *dims),
        "Buffer_UnpaddedDimensions": _getter(
            "Buffer_UnpaddedDimensions", ("unpadded_dims", offset("dims"), 8), *dims
        ),
        "Buffer_IsDeleted": _getter("Buffer_IsDeleted", ("is_deleted", offset("deleted"), 1)),
        "Memory_Kind": _getter("Memory_Kind", ("kind", 0, 8), ("kind_size", 8, 8)),
        "Buffer_Destroy": _buffer_destroy(slow.buffer_destroy_last),
        "Buffer_ReadyEvent": _if_flag(
            offset("ready"), event + _RETURN_NULL, slot["Buffer_ReadyEvent"]
        ),
        "Event_IsReady": _if_flag(EVENT_READY, is_ready + _RETURN_NULL, slot["Event_IsReady"]),
        "Event_Error": _if_flag(EVENT_READY, _RETURN_NULL, slot["Event_Error"]),
        "Event_Await": _if_flag(EVENT_READY, _RETURN_NULL, slot["Event_Await"]),
        "Event_OnReady": _if_flag(EVENT_READY, _call_back("Event_OnReady"), slot["Event_OnReady"]),
        "Error_Destroy": _if_object(slot["Error_Destroy"]),
        "Executable_NumReplicas": _getter("Executable_NumReplicas", ("num_replicas", 0, 8)),
        "Executable_NumPartitions": _getter("Executable_NumPartitions", ("num_partitions", 8, 8)),
        "Executable_NumOutputs": _getter("Executable_NumOutputs", ("num_outputs", 16, 8)),
        "Event_Destroy": _if_flag(EVENT_STATIC, _RETURN_NULL, slot["Event_Destroy"]),
    }


def supported() -> bool:
    """Whether the code of ``stubs`` runs on this host."""
    return platform.machine() in ("x86_64", "AMD64") and sys.platform in ("linux", "darwin")


def install(code: dict[str, bytes]) -> tuple[mmap.mmap, dict[str, int]] | None:
    """Puts code into executable memory: the page, to be kept for ever, and addresses by call.

    Returns ``None`` where the host refuses executable pages.
    """
    aligned = {name: body + b"\xcc" * (-len(body) % 16) for name, body in code.items()}
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
