"""Generated machine code for 64-bit Arm with the AAPCS64 calling convention.

The argument record is in x0. The functions are those of ``code_x86_64``.
"""

from __future__ import annotations

import struct

OBJECT = 16
X0, X1, X2, X9, X10, X11, X16, X19, X20, X29, X30, SP = 0, 1, 2, 9, 10, 11, 16, 19, 20, 29, 30, 31

PADDING = struct.pack("<I", 0xD4200000)  # brk #0


def _words(*words: int) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)


_SIZE = {
    8: (0xF9400000, 0xF9000000, 3),
    4: (0xB9400000, 0xB9000000, 2),
    1: (0x39400000, 0x39000000, 0),
}
"""Width -> opcodes of ldr and str with an unsigned offset, and the offset's shift."""


def _load(register: int, base: int, at: int, width: int = 8) -> bytes:
    opcode, _, shift = _SIZE[width]
    return _words(opcode | (at >> shift) << 10 | base << 5 | register)


def _store(register: int, base: int, at: int, width: int = 8) -> bytes:
    _, opcode, shift = _SIZE[width]
    return _words(opcode | (at >> shift) << 10 | base << 5 | register)


def _immediate(register: int, value: int) -> bytes:
    """movz and three movk."""
    halves = [value >> shift & 0xFFFF for shift in (0, 16, 32, 48)]
    opcodes = (0xD2800000, 0xF2A00000, 0xF2C00000, 0xF2E00000)
    return _words(*(op | half << 5 | register for op, half in zip(opcodes, halves, strict=True)))


def _move(destination: int, source: int) -> bytes:
    return _words(0xAA0003E0 | source << 16 | destination)


def _add(destination: int, base: int, value: int) -> bytes:
    return _words(0x91000000 | value << 10 | base << 5 | destination)


def _skip_if_zero(register: int, skipped: bytes) -> bytes:
    return _words(0xB4000000 | (len(skipped) // 4 + 1) << 5 | register)  # cbz


def _skip_unless_zero(register: int, skipped: bytes) -> bytes:
    return _words(0xB5000000 | (len(skipped) // 4 + 1) << 5 | register)  # cbnz


RETURN_NULL = _words(0xD2800000, 0xD65F03C0)  # mov x0, #0; ret
_LOAD_OBJECT = _load(X9, X0, OBJECT)


def getter(fields: list[tuple[int, int, int]]) -> bytes:
    """Copies fields (source in the object's record, destination in the arguments, width)."""
    copies = b"".join(
        _load(X10, X9, source, width) + _store(X10, X0, destination, width)
        for source, destination, width in fields
    )
    return _LOAD_OBJECT + copies + RETURN_NULL


def jump(address: int) -> bytes:
    """Goes on at an address."""
    return _immediate(X16, address) + _words(0xD61F0000 | X16 << 5)  # br x16


def _call(address: int) -> bytes:
    return _immediate(X16, address) + _words(0xD63F0000 | X16 << 5)  # blr x16


def if_flag(flag: int, then: bytes, otherwise: int) -> bytes:
    """``then`` if the byte ``flag`` of the object's record is set, else a jump."""
    test = _load(X10, X9, flag, 1) + _skip_if_zero(X10, then)
    return _LOAD_OBJECT + test + then + jump(otherwise)


def if_object(then: int) -> bytes:
    """A jump unless the object is NULL."""
    return _LOAD_OBJECT + _skip_unless_zero(X9, RETURN_NULL) + RETURN_NULL + jump(then)


def count_down(back: int, live: int, last: int) -> bytes:
    """Subtracts 1, atomically, from ``live`` of the record ``back`` bytes before the object's; a
    jump to ``last`` when it reaches 0. ``back`` and ``live`` are offsets of fields."""
    return (
        _LOAD_OBJECT
        + _load(X10, X9, back)
        + _words(0xCB000000 | X10 << 16 | X9 << 5 | X9)  # sub x9, x9, x10
        + _add(X9, X9, live)
        + _words(
            0xC85FFC00 | X9 << 5 | X10,  # ldaxr x10, [x9]
            0xD1000400 | X10 << 5 | X10,  # sub x10, x10, #1
            0xC800FC00 | X11 << 16 | X9 << 5 | X10,  # stlxr w11, x10, [x9]
            0x35000000 | (-3 & 0x7FFFF) << 5 | X11,  # cbnz w11, back to ldaxr
        )
        + _skip_if_zero(X10, RETURN_NULL)
        + RETURN_NULL
        + jump(last)
    )


def store_pointer(value: int, destination: int) -> bytes:
    """A pointer into the arguments."""
    return _immediate(X10, value) + _store(X10, X0, destination)


def store_true(destination: int) -> bytes:
    """The byte 1 into the arguments."""
    return _words(0xD2800020 | X10) + _store(X10, X0, destination, 1)  # mov x10, #1


def call_back(callback: int, user_arg: int) -> bytes:
    """callback(NULL, user_arg), both fields of the arguments."""
    return (
        _words(0xA9BF7BFD)  # stp x29, x30, [sp, #-16]!
        + _load(X9, X0, callback)
        + _load(X1, X0, user_arg)
        + _words(0xD2800000, 0xD63F0000 | X9 << 5)  # mov x0, #0; blr x9
        + _words(0xA8C17BFD)  # ldp x29, x30, [sp], #16
        + RETURN_NULL
    )


_LEAVE = _words(0xA94153F3, 0xA8C47BFD, 0xD65F03C0)  # ldp x19, x20; ldp x29, x30, [sp], #64; ret


def bracket(
    callback: int, closed: int, ensure: int, fetch: int, restore: int, release: int
) -> bytes:
    """NULL if closed(); else callback(arguments) between ensure, fetch(&a, &b, &c) and
    restore(a, b, c), release."""
    give_up = _words(0xD2800000) + _LEAVE  # mov x0, #0
    return (
        _words(0xA9BC7BFD, 0xA90153F3)  # stp x29, x30, [sp, #-64]!; stp x19, x20, [sp, #16]
        + _move(X19, X0)
        + _call(closed)
        + _words(0x53007C00)  # uxtw: mov w0, w0
        + _skip_if_zero(X0, give_up)
        + give_up
        + _call(ensure)
        + _move(X20, X0)
        + _add(X0, SP, 32)
        + _add(X1, SP, 40)
        + _add(X2, SP, 48)
        + _call(fetch)
        + _move(X0, X19)
        + _call(callback)
        + _move(X19, X0)
        + _load(X0, SP, 32)
        + _load(X1, SP, 40)
        + _load(X2, SP, 48)
        + _call(restore)
        + _move(X0, X20)
        + _call(release)
        + _move(X0, X19)
        + _LEAVE
    )
