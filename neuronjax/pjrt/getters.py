"""Calls that an object's record answers, as tables.

``native_ir.py`` describes machine code for them. Where there is none, Python functions answer that
are made of text here, without loops and frames of their own: a call with hundreds of arguments on
several cores makes tens of thousands of these calls.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from typing import Any

from neuronjax.pjrt import abi, layouts
from neuronjax.pjrt.guard import Callback
from neuronjax.pjrt.handles import BYTES, WORDS
from neuronjax.pjrt.plugin_state import EVENT_READY, EVENT_STATIC, Plugin
from neuronjax.pjrt.values import offset

BUFFER_DESTROY_LAST = "buffer_destroy_last"
"""What the call is that destroys the last shard of a value."""

NOTHING = "nothing"
"""A function for whoever needs one where nothing is to be done."""

COPIES: dict[str, tuple[tuple[str, int, int], ...]] = {
    "Buffer_Device": (("device", offset("device"), 64),),
    "Buffer_Memory": (("memory", offset("memory"), 64),),
    "Buffer_ElementType": (("type", offset("type"), 32),),
    "Buffer_Dimensions": (("dims", offset("dims"), 64), ("num_dims", offset("rank"), 8)),
    "Buffer_UnpaddedDimensions": (
        ("unpadded_dims", offset("dims"), 64),
        ("num_dims", offset("rank"), 8),
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
"""Call -> fields: (name in the arguments, offset in the object's record, bits there)."""

ZEROS: dict[str, tuple[tuple[str, int], ...]] = {
    "Buffer_IsOnCpu": (("is_on_cpu", 8),),
    "Buffer_DynamicDimensionIndices": (("dynamic_dim_indices", 64), ("num_dynamic_dims", 64)),
    "Layouts_MemoryLayout_Destroy": (),
    NOTHING: (),
}
"""Call -> fields of the arguments that are zero, and their bits."""

FLAGGED: dict[str, tuple[int, str]] = {
    "Buffer_ReadyEvent": (offset("ready"), "ready_event"),
    "Event_IsReady": (EVENT_READY, "is_ready"),
    "Event_Error": (EVENT_READY, NOTHING),
    "Event_Await": (EVENT_READY, NOTHING),
    "Event_OnReady": (EVENT_READY, "on_ready"),
    "Event_Destroy": (EVENT_STATIC, NOTHING),
}
"""Call -> offset of the flag in the object's record that allows the answer, and the answer."""

_FUNCTION = """\
def {call}(address):
    try:
{lines}
        return None
    except BaseException:
        return last_error
"""
_ARGUMENTS = ["arguments = views[address]"]
_OBJECT = [*_ARGUMENTS, f"object = arguments[{abi.OBJECT}]"]


class _Views(dict[int, Any]):
    """The words of the arguments at an address. Callers have theirs on the stack, where the next
    call has them too."""

    _MOST = 4096
    _WORDS = ctypes.c_uint64 * 16

    def __missing__(self, address: int) -> Any:
        if len(self) >= self._MOST:
            self.clear()
        view = self[address] = self._WORDS.from_address(address)
        return view


_DESTROY = (
    f"if BYTES[object + {offset('small')}]:",
    "    note_destroyed(object)",
    "    return None",
    "return python(address)",
)
"""Destroys a shard. Those of small values are noted, and counted later, many at a time."""


class _Kinds(dict[int, tuple[int, int]]):
    """Address and length of the kind of a memory, by the memory's handle: they never change."""

    def __missing__(self, memory: int) -> tuple[int, int]:
        at = memory >> 3
        kind = self[memory] = WORDS[at], WORDS[at + 1]
        return kind


def position(call: str, field: str) -> int:
    """Offset of a field in the arguments of a call, in bytes."""
    return getattr(_structure(call), field).offset


def _structure(call: str) -> Any:
    in_layouts = layouts.CALLS.get(call)
    return abi.argument_structure(call, in_layouts) if in_layouts else abi.args(call)


def width(call: str, field: str) -> int:
    """Bits of a field in the arguments of a call."""
    return 8 * getattr(_structure(call), field).size


def callbacks(plugin: Plugin, others: Mapping[str, Callback]) -> dict[str, Callback]:
    """Python functions for the calls of the tables.

    ``others`` are the callbacks that go on where a record does not hold the answer, by call.
    """
    texts = {name: _OBJECT + _copying(name, fields) for name, fields in COPIES.items()}
    texts |= {name: _ARGUMENTS + _zeroing(name, fields) for name, fields in ZEROS.items()}
    texts |= {
        name: _OBJECT + _flagged(name, flag, answer) for name, (flag, answer) in FLAGGED.items()
    }
    texts["Error_Destroy"] = [*_OBJECT, "if object:", "    return python(address)"]
    kind, size = (abi.word("Memory_Kind", name) for name in ("kind", "kind_size"))
    texts["Memory_Kind"] = [
        *_ARGUMENTS,
        f"arguments[{kind}], arguments[{size}] = kinds[arguments[{abi.OBJECT}]]",
    ]
    texts["Buffer_Destroy"] = [*_OBJECT, *_DESTROY]
    views, kinds = _Views(), _Kinds()
    made: dict[str, Callback] = {}
    for call, lines in texts.items():
        names: dict[str, Any] = {
            "views": views,
            "WORDS": WORDS,
            "BYTES": BYTES,
            "EVENT_CALLBACK": abi.EVENT_CALLBACK,
            "kinds": kinds,
            "note_destroyed": plugin.values.note_destroyed,
            "ready_event": plugin.ready_event,
            "last_error": plugin.last_error,
            "python": others.get(call),
        }
        body = "\n".join(f"        {line}" for line in lines)
        text = _FUNCTION.format(call=call, lines=body)
        exec(compile(text, f"<PJRT_{call}>", "exec"), names)
        made[call] = names[call]
    return made


def _copying(call: str, fields: Iterable[tuple[str, int, int]]) -> list[str]:
    return [
        "at = object >> 3",
        *(
            _store(position(call, name), width(call, name), _load(source, bits))
            for name, source, bits in fields
        ),
    ]


def _zeroing(call: str, fields: Iterable[tuple[str, int]]) -> list[str]:
    return [_store(position(call, name), bits, _ZERO.get(bits, "0")) for name, bits in fields]


def _flagged(call: str, flag: int, answer: str) -> list[str]:
    """The answer if the flag is set, else the other callback's."""
    is_ready = f"BYTES[object + {flag}]"
    if call.startswith("Event_"):
        is_ready = f"object == ready_event or {is_ready}"
    lines = [f"if not ({is_ready}):", "    return python(address)"]
    if answer == "ready_event":
        lines.append(_store(position(call, "event"), 64, "ready_event"))
    if answer == "is_ready":
        lines.append(_store(position(call, "is_ready"), 8, "1"))
    if answer == "on_ready":
        callback, user = (f"arguments[{abi.word(call, name)}]" for name in _CALLBACK)
        lines.append(f"EVENT_CALLBACK({callback})(None, {user})")
    return lines


_CALLBACK = ("callback", "user_arg")


_ZERO = {32: "bytes(4)"}


def _load(source: int, bits: int) -> str:
    if bits == 64:
        return f"WORDS[at + {source // 8}]" if source else "WORDS[at]"
    if bits == 32:
        return f"BYTES[object + {source} : object + {source + 4}]"
    return f"BYTES[object + {source}]"


def _store(to: int, bits: int, value: str) -> str:
    """Stores a field. One of a byte is the last of its arguments, so the padding behind it may be
    written too."""
    if bits == 32:
        return f"BYTES[address + {to} : address + {to + 4}] = {value}"
    return f"arguments[{to // 8}] = {value}"
