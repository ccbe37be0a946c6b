"""Calls that copy from an object's record to their arguments, as tables.

``native_ir.py`` describes machine code for them; the functions that are made of them here answer
where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from neuronjax.pjrt import abi, layouts
from neuronjax.pjrt.handles import BYTES, WORDS
from neuronjax.pjrt.values import offset

NOTHING = "nothing"
"""A function for whoever needs one where nothing is to be done."""

COPIES: dict[str, tuple[tuple[str, int, int], ...]] = {
    "Buffer_Device": (("device", offset("device"), 64),),
    "Buffer_Memory": (("memory", offset("memory"), 64),),
    "Buffer_ElementType": (("type", offset("type"), 32),),
    "Buffer_Dimensions": (("dims", offset("dims"), 64), ("num_dims", offset("rank"), 64)),
    "Buffer_UnpaddedDimensions": (
        ("unpadded_dims", offset("dims"), 64),
        ("num_dims", offset("rank"), 64),
    ),
    "Buffer_IsDeleted": (("is_deleted", offset("deleted"), 8),),
    "Memory_Kind": (("kind", 0, 64), ("kind_size", 8, 64)),
    "Executable_NumReplicas": (("num_replicas", 0, 64),),
    "Executable_NumPartitions": (("num_partitions", 8, 64),),
    "Executable_NumOutputs": (("num_outputs", 16, 64),),
    "Error_Message": (("message", 0, 64), ("message_size", 8, 64)),
    "Error_GetCode": (("code", 16, 32),),
    "Layouts_PJRT_Buffer_MemoryLayout": (("layout", offset("layout"), 64),),
    "Layouts_MemoryLayout_Serialize": (
        ("serialized_bytes", 0, 64),
        ("serialized_bytes_size", 8, 64),
        ("serialized_layout", 16, 64),
        ("serialized_layout_deleter", 24, 64),
    ),
}
"""Call -> fields: (name in the arguments, offset in the object's record, bits)."""

ZEROS: dict[str, tuple[tuple[str, int], ...]] = {
    "Buffer_IsOnCpu": (("is_on_cpu", 8),),
    "Buffer_DynamicDimensionIndices": (("dynamic_dim_indices", 64), ("num_dynamic_dims", 64)),
    "Layouts_MemoryLayout_Destroy": (),
    NOTHING: (),
}
"""Call -> fields of the arguments that are zero, and their bits."""

Call = Callable[[Any, int], None]
"""Takes the plugin and the address of a call's arguments."""


def position(call: str, field: str) -> int:
    """Offset of a field in the arguments of a call, in bytes."""
    in_layouts = layouts.CALLS.get(call)
    kind = abi.argument_structure(call, in_layouts) if in_layouts else abi.args(call)
    return getattr(kind, field).offset


def calls() -> dict[str, Call]:
    """A Python function for each call of the tables."""
    copying = {name: _copying(name, fields) for name, fields in COPIES.items()}
    return copying | {name: _zeroing(name, fields) for name, fields in ZEROS.items()}


def _copying(call: str, fields: Sequence[tuple[str, int, int]]) -> Call:
    copies = [(position(call, name), source, bits // 8) for name, source, bits in fields]
    words = [(to // 8, source // 8) for to, source, size in copies if size == 8]
    parts = [entry for entry in copies if entry[2] != 8]

    def copy(plugin: Any, address: int) -> None:
        arguments = address >> 3
        record = WORDS[arguments + abi.OBJECT]
        for to, source in words:
            WORDS[arguments + to] = WORDS[(record >> 3) + source]
        for to, source, size in parts:
            BYTES[address + to : address + to + size] = BYTES[
                record + source : record + source + size
            ]

    return copy


def _zeroing(call: str, fields: Sequence[tuple[str, int]]) -> Call:
    zeros = [(position(call, name), bytes(bits // 8)) for name, bits in fields]

    def write(plugin: Any, address: int) -> None:
        for to, zero in zeros:
            BYTES[address + to : address + to + len(zero)] = zero

    return write
