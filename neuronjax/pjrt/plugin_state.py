"""What the calls share: handle tables, strings, and the event that is always ready."""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

from neuronjax.machine.machine import Machine
from neuronjax.pjrt import abi
from neuronjax.pjrt.guard import describe
from neuronjax.pjrt.handles import Handles, Strings
from neuronjax.pjrt.values import ValueTable
from neuronjax.runtime.event import Event

EVENT_READY, EVENT_STATIC = 0, 1
"""Byte offsets of the flags in an event's record, shared with ``native.py``."""


class Plugin:
    """The state behind one PJRT_Api table."""

    def __init__(self) -> None:
        self.handles = Handles()
        self.values = ValueTable()
        self.strings = Strings()
        self.lock = threading.Lock()
        ready = Event()
        ready.set()
        self.ready_event = self.handles.add(ready, (0x0101,))
        self.machines: dict[tuple[str, int], Machine] = {}

    def new_error(self, error: BaseException) -> int:
        """A PJRT_Error for an exception."""
        return self.handles.add(describe(error))

    def new_event(self, event: Event) -> int:
        """A PJRT_Event for an event; the shared one if it is ready without error."""
        if event.is_ready() and event.error is None:
            return self.ready_event
        address = self.handles.add(event)

        def mark(error: BaseException | None) -> None:
            if error is None and address in self.handles:
                ctypes.c_uint8.from_address(address + EVENT_READY).value = 1

        event.on_ready(mark)
        return address

    def named_values(self, attributes: dict[str, Any]) -> tuple[Any, int]:
        """A C array of PJRT_NamedValue that lives as long as the returned object."""
        array = (abi.record("NamedValue") * max(1, len(attributes)))()
        keep = []
        for entry, (name, value) in zip(array, attributes.items(), strict=False):
            entry.struct_size = ctypes.sizeof(entry)
            entry.name, entry.name_size = self.strings(name)
            entry.type, entry.value, entry.value_size, kept = self._named(value)
            keep.append(kept)
        array.keep = keep
        return array, len(attributes)

    def _named(self, value: Any) -> tuple[int, int, int, Any]:
        if isinstance(value, bool):
            return abi.NAMED_VALUE_BOOL, int(value), 1, None
        if isinstance(value, int):
            return abi.NAMED_VALUE_INT64, value, 1, None
        if isinstance(value, float):
            bits = ctypes.c_uint32.from_buffer_copy(ctypes.c_float(value)).value
            return abi.NAMED_VALUE_FLOAT, bits, 1, None
        if isinstance(value, str):
            address, size = self.strings(value)
            return abi.NAMED_VALUE_STRING, address, size, None
        numbers = (ctypes.c_int64 * max(1, len(value)))(*value)
        return abi.NAMED_VALUE_INT64_LIST, ctypes.addressof(numbers), len(value), numbers

    def read_named_values(self, address: int | None, count: int) -> dict[str, Any]:
        """The options JAX passes when it creates a client or a topology."""
        if not address or not count:
            return {}
        found: dict[str, Any] = {}
        for entry in (abi.record("NamedValue") * count).from_address(address):
            name = ctypes.string_at(entry.name, entry.name_size).decode()
            if entry.type == abi.NAMED_VALUE_STRING:
                found[name] = ctypes.string_at(entry.value, entry.value_size).decode()
            elif entry.type == abi.NAMED_VALUE_INT64:
                found[name] = entry.value
            elif entry.type == abi.NAMED_VALUE_BOOL:
                found[name] = bool(entry.value & 0xFF)
            elif entry.type == abi.NAMED_VALUE_FLOAT:
                bits = ctypes.c_uint32(entry.value & 0xFFFFFFFF)
                found[name] = ctypes.c_float.from_buffer_copy(bits).value
            else:
                found[name] = tuple((ctypes.c_int64 * entry.value_size).from_address(entry.value))
        return found

    def live_handles(self) -> Counter[str]:
        """Live handles by kind, buffers as ``ShardedValue``."""
        counts = self.handles.counts()
        counts["ShardedValue"] = len(self.values.values)
        return counts


