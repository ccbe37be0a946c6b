"""The wire format of protocol buffers, for messages that no library here reads or writes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Set


def read_varint(data: bytes, index: int) -> tuple[int, int]:
    """The varint at ``index`` and the index after it."""
    value = shift = 0
    while True:
        byte = data[index]
        value |= (byte & 127) << shift
        shift, index = shift + 7, index + 1
        if byte < 128:
            return value, index


def write_varint(value: int) -> bytes:
    """``value`` as a varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def message(field: int, data: bytes) -> bytes:
    """``data`` as a length-delimited field."""
    return write_varint(field << 3 | 2) + write_varint(len(data)) + data


def number(field: int, value: int) -> bytes:
    """``value`` as a varint field."""
    return write_varint(field << 3) + write_varint(value)


def fixed64(field: int, value: int) -> bytes:
    """``value``, which is not negative, as a field of eight bytes."""
    return write_varint(field << 3 | 1) + struct.pack("<Q", value)


def double(field: int, value: float) -> bytes:
    """``value`` as a field of double precision."""
    return write_varint(field << 3 | 1) + struct.pack("<d", value)


_FIXED_BYTES = {1: 8, 5: 4}
"""Wire type -> size of fixed-width fields."""


def _spans(data: bytes) -> Iterator[tuple[int, int, int, int | bytes]]:
    """(field number, start, end, value) of every field of a message."""
    index = 0
    while index < len(data):
        start = index
        tag, index = read_varint(data, index)
        wire = tag & 7
        value: int | bytes
        if wire == 0:
            value, index = read_varint(data, index)
        else:
            size = _FIXED_BYTES.get(wire)
            if size is None:
                size, index = read_varint(data, index)
            value = data[index : index + size]
            index += size
        yield tag >> 3, start, index, value


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a message: an int for a varint, bytes for anything else."""
    for field, _, _, value in _spans(data):
        yield field, value


def first(data: bytes, field: int) -> bytes:
    """The first value of a length-delimited field; empty if there is none."""
    for number, value in fields(data):
        if number == field and isinstance(value, bytes):
            return value
    return b""


def rewrite(data: bytes, field: int, change: Callable[[bytes], bytes]) -> bytes:
    """The message with ``change`` applied to every value of a length-delimited field."""
    parts: list[bytes] = []
    for number, start, end, value in _spans(data):
        if number == field and isinstance(value, bytes):
            parts.append(message(field, change(value)))
        else:
            parts.append(data[start:end])
    return b"".join(parts)


def without(data: bytes, unwanted: Set[int]) -> bytes:
    """The message less some fields."""
    return b"".join(data[start:end] for n, start, end, _ in _spans(data) if n not in unwanted)


def packed(data: bytes) -> list[int]:
    """The numbers of a packed repeated field of varints."""
    numbers, index = [], 0
    while index < len(data):
        number, index = read_varint(data, index)
        numbers.append(number)
    return numbers
