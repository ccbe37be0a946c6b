"""What the calls share: handle tables, strings, and the event that is always ready."""

from __future__ import annotations

import ctypes
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from neuronjax.errors import NeuronError
from neuronjax.hlo.layouts import Order, text_of
from neuronjax.jaxlib_api.mlir import stablehlo_versions
from neuronjax.pjrt import abi
from neuronjax.pjrt.guard import ErrorRecord, describe, last_error
from neuronjax.pjrt.handles import Graveyard, Handles, Numbers, Strings, array_type, c_string
from neuronjax.pjrt.loading import Loading
from neuronjax.pjrt.values import ValueTable
from neuronjax.runtime.client import Client
from neuronjax.runtime.event import Event
from neuronjax.runtime.value import ShardedValue

EVENT_READY, EVENT_STATIC = 0, 1
"""Byte offsets of the flags in an event's record, shared with ``native.py``."""


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


_NEWEST, _OLDEST = stablehlo_versions()
_STABLEHLO = {
    "stablehlo_current_version": _version(_NEWEST),
    "stablehlo_minimum_version": _version(_OLDEST),
}
"""Programs come in the newest version: the same jaxlib reads them that wrote them."""


@dataclass(frozen=True)
class MemoryLayout:
    """The layout of all values of one order of dimensions."""

    order: Order


class Plugin:
    """The state behind one PJRT_Api table."""

    def __init__(self, watched: bool = False) -> None:
        """``watched`` keeps an eye on memory that was freed, see ``runtime/stress.py``."""
        self.handles = Handles(Graveyard() if watched else None)
        self.values = ValueTable(watched)
        self.strings = Strings()
        self.numbers = Numbers()
        ready = Event()
        ready.set()
        self.ready_event = self.handles.add(ready, (0x0101,))
        self.last_error = self._add_error(last_error())
        """Handle of the error that C gets when no other could be made."""
        self.clients: list[Any] = []
        self.loading = Loading()
        self.generations = itertools.count()
        """Numbers of the clients that work with other processes."""
        self.external_references: dict[int, list[Any]] = {}
        """Buffer -> its array, as often as it was lent to others."""
        self.attributes = self.named_values({"xla_version": 2, **_STABLEHLO})
        self.layouts: dict[Order, int] = {}
        """Order of dimensions -> handle of its layout."""
        self.first_run: Callable[[], object] | None = None
        """What is left to do when a program runs for the first time."""
        self.going_on: Callable[[], None] | None = None
        """What is left to do when a client is made after the exit functions were run."""
        self.deleter = 0
        """Address of the C function that takes back what was lent; the table sets it."""
        self.nothing = 0
        """Address of a C function that does nothing, likewise."""

    def client_of(self, device: Any) -> Any:
        """The ``ClientState`` whose device this is."""
        for state in self.clients:
            if device.id < len(state.client.devices) and state.client.devices[device.id] is device:
                return state
        raise NeuronError(f"{device} belongs to a client that was destroyed")

    def client_of_value(self, value: ShardedValue) -> Client:
        """The runtime client that made a value."""
        for state in self.clients:
            if state.client.ledger is value.ledger:
                return state.client
        raise NeuronError("a buffer outlived its client")

    def layout(self, order: Order) -> int:
        """The one handle of the layout with this order of dimensions. Its record holds what
        ``Layouts_MemoryLayout_Serialize`` answers: the text, its size, who owns it, and how to
        give it back."""
        handle = self.layouts.get(order)
        if handle is None:
            words = (*self.strings(text_of(order)), 0, self.nothing)
            address = self.handles.add(MemoryLayout(order), words)
            self.handles.record(address)[2] = address
            handle = self.layouts.setdefault(order, address)
        return handle

    def lend(self, data: bytes) -> tuple[int, int, int, int]:
        """Bytes JAX owns until it calls the deleter: address, size, handle and deleter."""
        buffer = c_string(data)
        handle = self.handles.add(buffer)
        return ctypes.addressof(buffer), len(data), handle, self.deleter

    def new_error(self, error: BaseException) -> int:
        """A PJRT_Error for an exception; never raises."""
        try:
            return self._add_error(describe(error))
        except BaseException:
            return self.last_error

    def _add_error(self, error: ErrorRecord) -> int:
        text = error.message
        return self.handles.add(error, (ctypes.addressof(text), len(text) - 1, error.code))

    def new_event(self, event: Event) -> int:
        """A PJRT_Event for an event; the shared one if it is ready without error."""
        if event.is_ready() and event.error is None:
            return self.ready_event
        return self.event_handle(event)

    def event_handle(self, event: Event) -> int:
        """A handle of its own for an event.

        The flag of its record is written before anybody hears of the event's end, who may destroy
        the handle thereupon, and the writer keeps the record.
        """
        address = self.handles.add(event)
        record = self.handles.record(address)

        def mark(error: BaseException | None) -> None:
            if error is None:
                record[0] = 1 << 8 * EVENT_READY

        event.on_ready(mark)
        return address

    def named_values(self, attributes: dict[str, Any]) -> tuple[Any, int]:
        """A C array of PJRT_NamedValue that lives as long as the returned object."""
        array = (abi.record("NamedValue") * max(1, len(attributes)))()
        keep = []
        for entry, (name, value) in zip(array, attributes.items(), strict=False):
            entry.struct_size = ctypes.sizeof(entry)
            entry.name, entry.name_size = self.strings(name)
            entry.type, entry.value, entry.value_size, kept = self._encode_value(value)
            keep.append(kept)
        array.keep = keep
        return array, len(attributes)

    def _encode_value(self, value: Any) -> tuple[int, int, int, Any]:
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
        numbers = array_type(ctypes.c_int64, max(1, len(value)))(*value)
        return abi.NAMED_VALUE_INT64_LIST, ctypes.addressof(numbers), len(value), numbers

    def read_named_values(self, address: int | None, count: int) -> dict[str, Any]:
        """The options JAX passes when it creates a client or a topology."""
        if not address or not count:
            return {}
        options: dict[str, Any] = {}
        for entry in (abi.record("NamedValue") * count).from_address(address):
            name = ctypes.string_at(entry.name, entry.name_size).decode()
            if entry.type == abi.NAMED_VALUE_STRING:
                options[name] = ctypes.string_at(entry.value, entry.value_size).decode()
            elif entry.type == abi.NAMED_VALUE_INT64:
                options[name] = entry.value
            elif entry.type == abi.NAMED_VALUE_BOOL:
                options[name] = bool(entry.value & 0xFF)
            elif entry.type == abi.NAMED_VALUE_FLOAT:
                bits = ctypes.c_uint32(entry.value & 0xFFFFFFFF)
                options[name] = ctypes.c_float.from_buffer_copy(bits).value
            else:
                options[name] = tuple(
                    array_type(ctypes.c_int64, entry.value_size).from_address(entry.value)
                )
        return options

    def live_handles(self) -> Counter[str]:
        """Live handles by kind, buffers as ``ShardedValue``; without layouts, which stay for the
        life of the process."""
        self.values.collect()
        counts = self.handles.counts()
        del counts[MemoryLayout.__name__]
        counts["ShardedValue"] = len(self.values)
        return counts
