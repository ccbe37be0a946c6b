"""The few bytes of protobuf wire format that jaxlib has no accessor for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


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


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a message of varints and length-delimited fields."""
    index = 0
    while index < len(data):
        tag, index = read_varint(data, index)
        value, index = read_varint(data, index)
        if tag & 7 == 2:
            yield tag >> 3, data[index : index + value]
            index += value
        else:
            yield tag >> 3, value


def _packed(data: bytes) -> list[int]:
    numbers, index = [], 0
    while index < len(data):
        number, index = read_varint(data, index)
        numbers.append(number)
    return numbers


def read_device_assignment(data: bytes) -> np.ndarray:
    """DeviceAssignmentProto as an int64 table of (replicas, computations).

    Fields: 1 replica count, 2 computation count, 3 repeated message {1: packed device ids}.
    """
    columns: list[list[int]] = []
    for field, value in fields(data):
        if field == 3 and isinstance(value, bytes):
            column: list[int] = []
            for inner, entry in fields(value):
                if inner == 1:
                    column += _packed(entry) if isinstance(entry, bytes) else [entry]
            columns.append(column)
    return np.array(columns, dtype=np.int64).T


def write_device_assignment(table: Sequence[Sequence[int]] | np.ndarray) -> bytes:
    """The inverse of ``read_device_assignment``."""
    ids = np.asarray(table)
    message = b"\x08" + write_varint(ids.shape[0]) + b"\x10" + write_varint(ids.shape[1])
    for column in ids.T:
        packed = b"".join(write_varint(int(i)) for i in column)
        entry = b"\x0a" + write_varint(len(packed)) + packed
        message += b"\x1a" + write_varint(len(entry)) + entry
    return message
