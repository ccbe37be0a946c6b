"""The Layouts extension: every buffer says what layout was asked for.

The bytes on the host are row-major whatever a buffer says, and an engine program decides for itself
where its values lie.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from neuronjax.hlo.layouts import Order, row_major
from neuronjax.pjrt import abi
from neuronjax.pjrt.handles import read_int64s
from neuronjax.pjrt.plugin_state import Plugin

CALLS: dict[str, str] = {
    "Layouts_MemoryLayout_Destroy": "layout:p",
    "Layouts_MemoryLayout_Serialize": (
        "layout:p serialized_bytes:p serialized_bytes_size:z serialized_layout:p "
        "serialized_layout_deleter:p"
    ),
    "Layouts_PJRT_Client_GetDefaultLayout": "client:p type:i dims:p num_dims:z layout:p",
    "Layouts_PJRT_Buffer_MemoryLayout": "buffer:p layout:p",
    "Layouts_PJRT_Topology_GetDefaultLayout": (
        "topology_description:p type:i dims:p num_dims:z layout:p"
    ),
    "Layouts_PJRT_Executable_GetOutputLayouts": "executable:p num_outputs:z layouts:p",
}
"""Slots of ``PJRT_Layouts_Extension`` (version 3) after its base, in order."""


def Layouts_PJRT_Client_GetDefaultLayout(plugin: Plugin, args: Any) -> None:
    args.layout = plugin.layout(row_major(args.num_dims))


def Layouts_PJRT_Topology_GetDefaultLayout(plugin: Plugin, args: Any) -> None:
    args.layout = plugin.layout(row_major(args.num_dims))


def Layouts_PJRT_Executable_GetOutputLayouts(plugin: Plugin, args: Any) -> None:
    state = plugin.handles[args.executable]
    args.layouts = ctypes.addressof(state.layouts)
    args.num_outputs = len(state.program.signature.results)


def read_order(address: int | None, shape: tuple[int, ...]) -> Order | None:
    """The order that a ``PJRT_Buffer_MemoryLayout`` gives the dimensions of ``shape``; ``None`` is
    row-major, and so is no layout at all."""
    if not address:
        return None
    wanted = abi.MemoryLayout.from_address(address)
    order = read_int64s(wanted.values, wanted.num_values)
    if wanted.type == abi.LAYOUT_STRIDES:
        strides = order
        order = tuple(sorted(range(len(shape)), key=lambda d: (strides[d], shape[d] != 1, -d)))
    return None if order == row_major(len(shape)) else order


def calls() -> dict[str, tuple[Any, Callable[[Plugin, Any], None]]]:
    """Argument structure and function of the calls that more is to be done for than to copy from
    a layout's record or a buffer's."""
    return {
        name: (abi.argument_structure(name, spec), globals()[name])
        for name, spec in CALLS.items()
        if name in globals()
    }


def extension(addresses: dict[str, int]) -> Any:
    """The extension record, with the callbacks' addresses by name."""
    fields = [("struct_size", ctypes.c_size_t), ("type", ctypes.c_int32), ("next", ctypes.c_void_p)]
    fields += [(name, ctypes.c_void_p) for name in CALLS]
    record = type("PJRT_Layouts_Extension", (ctypes.Structure,), {"_fields_": fields})()
    record.struct_size = ctypes.sizeof(record)
    record.type = abi.EXTENSION_LAYOUTS
    for name in CALLS:
        setattr(record, name, addresses[name])
    return record
