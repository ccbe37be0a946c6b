"""Generated machine code for x86-64 with the System V calling convention.

The argument record is in rdi. Every function returns the bytes of a piece of code.
"""

from __future__ import annotations

import struct

OBJECT = 16
"""Every argument record has its object right behind the two header words."""

PADDING = b"\xcc"
RETURN_NULL = b"\x31\xc0\xc3"  # xor eax, eax; ret
_LOAD_OBJECT = b"\x48\x8b\x47" + bytes([OBJECT])  # mov rax, [rdi + 16]
_LOAD = {8: b"\x48\x8b\x48", 4: b"\x8b\x48", 1: b"\x0f\xb6\x48"}  # mov rcx, [rax + …]
_STORE = {8: b"\x48\x89\x4f", 4: b"\x89\x4f", 1: b"\x88\x4f"}  # mov [rdi + …], rcx


def getter(fields: list[tuple[int, int, int]]) -> bytes:
    """Copies fields (source in the object's record, destination in the arguments, width)."""
    copies = b"".join(
        _LOAD[width] + bytes([source]) + _STORE[width] + bytes([destination])
        for source, destination, width in fields
    )
    return _LOAD_OBJECT + copies + RETURN_NULL


def jump(address: int) -> bytes:
    """Goes on at an address."""
    return b"\x48\xb8" + struct.pack("<Q", address) + b"\xff\xe0"  # mov rax, imm; jmp rax


def _call(address: int) -> bytes:
    return b"\x48\xb8" + struct.pack("<Q", address) + b"\xff\xd0"  # mov rax, imm; call rax


def if_flag(flag: int, then: bytes, otherwise: int) -> bytes:
    """``then`` if the byte ``flag`` of the object's record is set, else a jump."""
    test = b"\x80\x78" + bytes([flag, 0])  # cmp byte [rax + flag], 0
    skip = b"\x74" + bytes([len(then)])  # je
    return _LOAD_OBJECT + test + skip + then + jump(otherwise)


def if_object(then: int) -> bytes:
    """A jump unless the object is NULL."""
    test = b"\x48\x85\xc0\x75" + bytes([len(RETURN_NULL)])  # test rax, rax; jne
    return _LOAD_OBJECT + test + RETURN_NULL + jump(then)


def count_down(back: int, live: int, last: int) -> bytes:
    """Subtracts 1, atomically, from ``live`` of the record ``back`` bytes before the object's; a
    jump to ``last`` when it reaches 0. ``back`` and ``live`` are offsets of fields."""
    return (
        _LOAD_OBJECT
        + b"\x48\x8b\x48" + bytes([back])  # mov rcx, [rax + back]
        + b"\x48\x29\xc8"  # sub rax, rcx
        + b"\xf0\x48\x83\x68" + bytes([live, 1])  # lock sub qword [rax + live], 1
        + b"\x74" + bytes([len(RETURN_NULL)])  # je
        + RETURN_NULL
        + jump(last)
    )  # fmt: skip


def store_pointer(value: int, destination: int) -> bytes:
    """A pointer into the arguments."""
    # mov rcx, imm; mov [rdi + destination], rcx
    return b"\x48\xb9" + struct.pack("<Q", value) + b"\x48\x89\x4f" + bytes([destination])


def store_true(destination: int) -> bytes:
    """The byte 1 into the arguments."""
    return b"\xc6\x47" + bytes([destination, 1])  # mov byte [rdi + destination], 1


def call_back(callback: int, user_arg: int) -> bytes:
    """callback(NULL, user_arg), both fields of the arguments."""
    return (
        b"\x48\x8b\x47" + bytes([callback])  # mov rax, [rdi + callback]
        + b"\x48\x8b\x77" + bytes([user_arg])  # mov rsi, [rdi + user_arg]
        + b"\x31\xff"  # xor edi, edi
        + b"\x48\x83\xec\x08\xff\xd0\x48\x83\xc4\x08"  # sub rsp, 8; call rax; add rsp, 8
        + RETURN_NULL
    )  # fmt: skip


_LEAVE = b"\x48\x83\xc4\x20\x41\x5d\x41\x5c\x5b\xc3"  # add rsp, 32; pop r13, r12, rbx; ret


def bracket(
    callback: int, closed: int, ensure: int, fetch: int, restore: int, release: int
) -> bytes:
    """NULL if closed(); else callback(arguments) between ensure, fetch(&a, &b, &c) and
    restore(a, b, c), release."""
    give_up = b"\x31\xc0" + _LEAVE  # xor eax, eax
    return (
        b"\x53\x41\x54\x41\x55"  # push rbx; push r12; push r13
        b"\x48\x83\xec\x20"  # sub rsp, 32: a, b, c
        b"\x48\x89\xfb"  # mov rbx, rdi
        + _call(closed)
        + b"\x85\xc0\x74" + bytes([len(give_up)])  # test eax, eax; je
        + give_up
        + _call(ensure)
        + b"\x41\x89\xc4"  # mov r12d, eax
        b"\x48\x89\xe7"  # mov rdi, rsp
        b"\x48\x8d\x74\x24\x08"  # lea rsi, [rsp + 8]
        b"\x48\x8d\x54\x24\x10"  # lea rdx, [rsp + 16]
        + _call(fetch)
        + b"\x48\x89\xdf"  # mov rdi, rbx
        + _call(callback)
        + b"\x49\x89\xc5"  # mov r13, rax
        b"\x48\x8b\x3c\x24"  # mov rdi, [rsp]
        b"\x48\x8b\x74\x24\x08"  # mov rsi, [rsp + 8]
        b"\x48\x8b\x54\x24\x10"  # mov rdx, [rsp + 16]
        + _call(restore)
        + b"\x44\x89\xe7"  # mov edi, r12d
        + _call(release)
        + b"\x4c\x89\xe8"  # mov rax, r13
        + _LEAVE
    )  # fmt: skip
