"""The C API's records and slots. The numbers are those a C compiler gives for the 0.90 header."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import jax
import numpy as np
import pytest

from neuronjax.pjrt import abi, getters, layouts, profiler
from neuronjax.pjrt.native_ir import STUBS
from neuronjax.pjrt.table import implementations
from tests.pjrt.conftest import CallError, Calls

Watch = Callable[[], AbstractContextManager[None]]


@pytest.mark.parametrize(
    ("call", "size"),
    [
        ("Error_Destroy", 24),
        ("Plugin_Initialize", 16),
        ("Event_OnReady", 40),
        ("Client_Create", 88),
        ("Client_Compile", 56),
        ("Client_DefaultDeviceAssignment", 48),
        ("Client_BufferFromHostBuffer", 120),
        ("Device_MemoryStats", 192),
        ("Executable_Serialize", 56),
        ("Executable_DeserializeAndLoad", 64),
        ("LoadedExecutable_Execute", 80),
        ("Buffer_GetMemoryLayout", 104),
        ("Buffer_ToHostBuffer", 56),
        ("TopologyDescription_Create", 56),
        ("Compile", 64),
        ("Client_CreateViewOfDeviceBuffer", 112),
        ("Executable_GetCompiledMemoryStats", 120),
        ("AsyncHostToDeviceTransferManager_TransferData", 72),
        ("Client_CreateBuffersForAsyncHostToDevice", 72),
        ("Client_CreateErrorBuffer", 96),
        ("Event_Set", 48),
    ],
)
def test_size_of_arguments(call: str, size: int) -> None:
    assert ctypes.sizeof(abi.args(call)) == size


@pytest.mark.parametrize(
    ("record", "size"),
    [("Extension_Base", 24), ("Api_Version", 24), ("NamedValue", 56), ("Program", 48),
     ("ShapeSpec", 40), ("ExecuteOptions", 112), ("Buffer_CopyRawToHostFuture_Callback", 48)],
)  # fmt: skip
def test_size_of_record(record: str, size: int) -> None:
    assert ctypes.sizeof(abi.record(record)) == size


@pytest.mark.parametrize(
    ("call", "field", "offset"),
    [
        ("Buffer_Device", "buffer", 16),
        ("Buffer_Device", "device", 24),
        ("Buffer_IsDeleted", "is_deleted", 24),
        ("Buffer_Dimensions", "num_dims", 32),
        ("Client_BufferFromHostBuffer", "type", 32),
        ("Client_BufferFromHostBuffer", "host_buffer_semantics", 72),
        ("Client_BufferFromHostBuffer", "buffer", 112),
        ("LoadedExecutable_Execute", "device_complete_events", 64),
        ("Device_MemoryStats", "bytes_limit", 80),
        ("AsyncHostToDeviceTransferManager_TransferData", "done_with_h2d_transfer", 64),
    ],
)
def test_offset_of_field(call: str, field: str, offset: int) -> None:
    assert getattr(abi.args(call), field).offset == offset


@pytest.mark.parametrize(
    ("call", "offset"),
    [
        ("Error_Destroy", 40),
        ("Client_Create", 120),
        ("Client_Compile", 200),
        ("LoadedExecutable_Execute", 480),
        ("Buffer_Destroy", 504),
        ("Compile", 752),
        ("Event_Create", 1048),
        ("Event_Set", 1056),
    ],
)
def test_slot(call: str, offset: int) -> None:
    assert getattr(abi.Api, call).offset == offset


def test_table_of_calls(calls: Calls) -> None:
    api = calls.table.api
    assert ctypes.sizeof(abi.Api) == api.struct_size == 1064
    assert (api.version_size, api.major_version, api.minor_version) == (24, 0, 90)
    assert [name for name in abi.CALLS if not getattr(api, name)] == []


def test_layout_record() -> None:
    layout = abi.MemoryLayout
    assert ctypes.sizeof(layout) == 80
    offsets = (layout.values.offset, layout.num_values.offset, layout.type.offset)
    assert offsets == (32, 40, 72)


def test_layouts_extension(calls: Calls) -> None:
    base = abi.record("Extension_Base").from_address(calls.table.api.extension_start)
    # The base and six calls.
    assert (base.struct_size, base.type) == (72, 4)
    pointers = (ctypes.c_void_p * 6).from_address(calls.table.api.extension_start + 24)
    assert all(pointers)
    assert len(layouts.CALLS) == 6


def test_profiler_extension(calls: Calls) -> None:
    record = calls.table.profiler
    assert ctypes.sizeof(record) == 40
    assert record.type == 1
    assert calls.table.layouts.next == ctypes.addressof(record)
    assert record.table[0] == ctypes.sizeof(record.table) == 80
    assert list(map(len, (profiler.ERROR_CALLS, profiler.CALLS))) == [3, 5]


ANSWERED = {*implementations(), *getters.COPIES, *getters.ZEROS, "Buffer_Destroy"}
UNIMPLEMENTED = sorted(set(abi.CALLS) - ANSWERED)


@pytest.mark.parametrize("name", UNIMPLEMENTED)
def test_call_that_is_not_implemented_says_so(name: str, calls: Calls) -> None:
    with pytest.raises(CallError, match=f"PJRT_{name} is not implemented") as caught:
        calls(name)
    assert caught.value.status == "UNIMPLEMENTED"


def of_a_handle() -> Iterator[tuple[str, str]]:
    """Calls on handles, and the field; buffers and what is read by generated code stay out."""
    kinds = ("client", "device", "executable", "topology", "device_description")
    for name, spec in abi.CALLS.items():
        field = spec.split(":")[0]
        native_or_ends = name in STUBS or name.endswith("_Destroy")
        if name in implementations() and field in kinds and not native_or_ends:
            yield name, field


ANSWERS_ANYHOW = {
    "Client_ProcessIndex", "Client_PlatformName", "Client_UpdateGlobalProcessInfo",
    "Client_DefaultDeviceAssignment", "Client_DmaMap", "Client_DmaUnmap", "Device_IsAddressable",
    "Device_PoisonExecution", "Device_CreateAsyncTrackingEvent", "DeviceDescription_ProcessIndex",
    "TopologyDescription_PlatformName", "Compile", "Executable_OptimizedProgram",
}  # fmt: skip
"""Calls whose answer does not depend on the handle, or that read another argument first."""


@pytest.mark.parametrize(
    ("name", "field"), [call for call in of_a_handle() if call[0] not in ANSWERS_ANYHOW]
)
def test_unknown_handle_is_an_error(name: str, field: str, calls: Calls) -> None:
    with pytest.raises(CallError, match="does not exist or was destroyed"):
        calls(name, **{field: 0xDEAD0})


@pytest.mark.parametrize("code", [0, 23, 30, 99, -1])
def test_unknown_element_type(code: int, calls: Calls) -> None:
    dims = (ctypes.c_int64 * 1)(4)
    data = np.zeros(64, np.uint8)
    with pytest.raises(
        CallError, match=rf"unknown PJRT element type {code}; the known types are \[1, 2"
    ):
        calls(
            "Client_BufferFromHostBuffer",
            client=calls.client(),
            data=data.ctypes.data,
            type=code,
            dims=ctypes.addressof(dims),
            num_dims=1,
            device=calls.state().device_handles[0],
        )
    assert float(jax.jit(lambda x: x + 1)(1.0)) == 2.0


def test_async_transfer_in_pieces(calls: Calls, no_new_handles: Watch) -> None:
    value = np.arange(10, dtype=np.int32).reshape(2, 5)
    raw = np.ascontiguousarray(value).view(np.uint8).reshape(-1)
    dims = (ctypes.c_int64 * 2)(2, 5)
    spec = abi.record("ShapeSpec")(dims=ctypes.addressof(dims), num_dims=2, element_type=4)
    state = calls.state()
    memory = state.memory_handles[3, "device"]
    with no_new_handles():
        manager = calls(
            "Client_CreateBuffersForAsyncHostToDevice",
            client=calls.client(),
            shape_specs=ctypes.addressof(spec),
            num_shape_specs=1,
            memory=memory,
        ).transfer_manager
        prefix = "AsyncHostToDeviceTransferManager_"
        assert calls(f"{prefix}BufferCount", transfer_manager=manager).buffer_count == 1
        assert calls(f"{prefix}BufferSize", transfer_manager=manager).buffer_size == 40
        device = calls(f"{prefix}Device", transfer_manager=manager).device_out
        assert device == state.device_handles[3]
        for start, end in ((24, 40), (0, 24)):
            calls(
                f"{prefix}TransferData",
                transfer_manager=manager,
                data=raw.ctypes.data + start,
                offset=start,
                transfer_size=end - start,
            )
        with pytest.raises(CallError, match="bytes 32-48 are out of bounds: the buffer has 40"):
            calls(f"{prefix}TransferData", transfer_manager=manager, offset=32, transfer_size=16)
        with pytest.raises(CallError, match="buffer 1 does not exist; there are 1 buffers"):
            calls(f"{prefix}RetrieveBuffer", transfer_manager=manager, buffer_index=1)
        buffer = calls(f"{prefix}RetrieveBuffer", transfer_manager=manager).buffer_out
        np.testing.assert_array_equal(calls.get(buffer, value), value)
        calls("Buffer_Destroy", buffer=buffer)
        calls(f"{prefix}Destroy", transfer_manager=manager)


@pytest.mark.parametrize(("offset", "size"), [(0, 24), (4, 8), (23, 1), (24, 0)], ids=str)
def test_raw_copy_to_host(offset: int, size: int, calls: Calls) -> None:
    value = np.arange(24, dtype=np.uint8)
    buffer = calls.put(value)
    out = np.zeros(24, np.uint8)
    where = {"offset": offset, "transfer_size": size}
    calls("Buffer_CopyRawToHost", buffer=buffer, dst=out.ctypes.data, **where)
    np.testing.assert_array_equal(out[:size], value[offset : offset + size])
    assert not out[size:].any()
    with pytest.raises(CallError, match="are out of bounds: the buffer has 24"):
        calls("Buffer_CopyRawToHost", buffer=buffer, offset=offset + 1, transfer_size=24)
    calls("Buffer_Destroy", buffer=buffer)
