"""The C API of the running platform, called through its function pointers."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import pytest

from neuronjax.pjrt import abi, layouts, plugin
from neuronjax.pjrt.client_state import ClientState
from neuronjax.pjrt.element_types import code_of
from neuronjax.pjrt.table import Table

STATUS = {code: name for name, code in abi.ERROR_CODES.items()}


def arguments(name: str) -> Any:
    """The structure of the arguments of a call, of an extension too."""
    in_layouts = layouts.CALLS.get(name)
    return abi.argument_structure(name, in_layouts) if in_layouts else abi.args(name)


class CallError(Exception):
    """A PJRT_Error that a call returned: its status name and message."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Calls:
    """``calls("Buffer_Device", buffer=…)`` fills the argument record, calls, returns the record."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.plugin = table.plugin

    def client(self) -> int:
        """The handle of the client that JAX made."""
        return self.handle(self.plugin.clients[-1])

    def state(self) -> ClientState:
        return self.plugin.clients[-1]

    def handle(self, wanted: object) -> int:
        """The handle of an object of the plugin."""
        handles = self.plugin.handles
        return next(address for address, obj in handles._objects.items() if obj is wanted)

    def __call__(self, name: str, **fields: Any) -> Any:
        return self.at(self.table.slots[name], name, **fields)

    def at(self, address: int, name: str, **fields: Any) -> Any:
        """The same through another function pointer than the table's."""
        record = arguments(name)()
        record.struct_size = ctypes.sizeof(record)
        for field, value in fields.items():
            setattr(record, field, value)
        error = abi.CALLBACK(address)(ctypes.addressof(record))
        if error:
            raise self.error(error)
        return record

    def error(self, error: int) -> CallError:
        """What a ``PJRT_Error`` says; destroys it."""
        code = self("Error_GetCode", error=error).code
        text = self("Error_Message", error=error)
        message = ctypes.string_at(text.message, text.message_size).decode()
        self("Error_Destroy", error=error)
        return CallError(STATUS[code], message)

    def put(self, value: np.ndarray, device: int = 0, memory: int | None = None) -> int:
        """The handle of a buffer with a copy of ``value``."""
        dims = (ctypes.c_int64 * max(1, value.ndim))(*value.shape)
        strides = (ctypes.c_int64 * max(1, value.ndim))(*value.strides)
        return self(
            "Client_BufferFromHostBuffer",
            client=self.client(),
            data=value.ctypes.data,
            type=code_of(value.dtype),
            dims=ctypes.addressof(dims),
            num_dims=value.ndim,
            byte_strides=ctypes.addressof(strides),
            num_byte_strides=value.ndim,
            device=self.state().device_handles[device],
            memory=memory,
        ).buffer

    def get(self, buffer: int, like: np.ndarray) -> np.ndarray:
        """The values of a buffer, which has the type of ``like``."""
        out = np.empty_like(like, order="C")
        event = self(
            "Buffer_ToHostBuffer", src=buffer, dst=out.ctypes.data, dst_size=out.nbytes
        ).event
        self("Event_Await", event=event)
        self("Event_Destroy", event=event)
        return out


@pytest.fixture(scope="session")
def calls(neuron_devices: list[jax.Device]) -> Calls:
    (table,) = plugin.tables()
    return Calls(table)


@pytest.fixture
def no_new_handles(calls: Calls) -> Any:
    """A context in which as many handles end as begin."""

    @contextmanager
    def watched() -> Iterator[None]:
        gc.collect()
        before = calls.plugin.live_handles()
        yield
        gc.collect()
        after = calls.plugin.live_handles()
        assert {k: n for k, n in after.items() if n != before[k]} == {}

    return watched
