"""PJRT_AsyncHostToDeviceTransferManager calls: buffers that are filled in pieces."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from neuronjax.errors import NeuronError
from neuronjax.pjrt import abi
from neuronjax.pjrt.client_state import ClientState
from neuronjax.pjrt.element_types import dtype_of
from neuronjax.pjrt.handles import read_bytes, read_int64s
from neuronjax.pjrt.plugin_state import Plugin
from neuronjax.runtime.device import Memory


class TransferManager:
    """Host staging arrays that become buffers of one memory when they are complete."""

    def __init__(self, state: ClientState, memory: Memory, arrays: list[np.ndarray]) -> None:
        self.state = state
        self.memory = memory
        self.arrays = arrays
        self.errors: dict[int, str] = {}

    def array(self, index: int) -> np.ndarray:
        if not 0 <= index < len(self.arrays):
            raise IndexError(f"buffer {index} does not exist; there are {len(self.arrays)} buffers")
        return self.arrays[index]


def Client_CreateBuffersForAsyncHostToDevice(plugin: Plugin, args: Any) -> None:
    state = plugin.handles[args.client]
    specs = (abi.record("ShapeSpec") * args.num_shape_specs).from_address(args.shape_specs)
    arrays = [
        np.zeros(read_int64s(spec.dims, spec.num_dims), dtype_of(spec.element_type))
        for spec in specs
    ]
    manager = TransferManager(state, plugin.handles[args.memory], arrays)
    args.transfer_manager = plugin.handles.add(manager)


def AsyncHostToDeviceTransferManager_Destroy(plugin: Plugin, args: Any) -> None:
    plugin.handles.drop(args.transfer_manager)


def AsyncHostToDeviceTransferManager_TransferData(plugin: Plugin, args: Any) -> None:
    array = plugin.handles[args.transfer_manager].array(args.buffer_index)
    start, size = args.offset, args.transfer_size
    if start < 0 or size < 0 or start + size > array.nbytes:
        raise ValueError(
            f"bytes {start}-{start + size} are out of bounds: the buffer has {array.nbytes}"
        )
    ctypes.memmove(array.ctypes.data + start, args.data, size)
    args.done_with_h2d_transfer = plugin.ready_event


def AsyncHostToDeviceTransferManager_TransferLiteral(plugin: Plugin, args: Any) -> None:
    array = plugin.handles[args.transfer_manager].array(args.buffer_index)
    ctypes.memmove(array.ctypes.data, args.data, array.nbytes)
    args.done_with_h2d_transfer = plugin.ready_event


def AsyncHostToDeviceTransferManager_RetrieveBuffer(plugin: Plugin, args: Any) -> None:
    manager = plugin.handles[args.transfer_manager]
    index = args.buffer_index
    if index in manager.errors:
        raise NeuronError(manager.errors[index])
    value = manager.state.client.put(
        manager.array(index), manager.memory.device, manager.memory.kind
    )
    args.buffer_out = manager.state.add_value(value)


def AsyncHostToDeviceTransferManager_Device(plugin: Plugin, args: Any) -> None:
    manager = plugin.handles[args.transfer_manager]
    args.device_out = manager.state.device_handles[manager.memory.device.id]


def AsyncHostToDeviceTransferManager_BufferCount(plugin: Plugin, args: Any) -> None:
    args.buffer_count = len(plugin.handles[args.transfer_manager].arrays)


def AsyncHostToDeviceTransferManager_BufferSize(plugin: Plugin, args: Any) -> None:
    manager = plugin.handles[args.transfer_manager]
    args.buffer_size = manager.array(args.buffer_index).nbytes


def AsyncHostToDeviceTransferManager_SetBufferError(plugin: Plugin, args: Any) -> None:
    message = read_bytes(args.error_message, args.error_message_size).decode(errors="replace")
    plugin.handles[args.transfer_manager].errors[args.buffer_index] = message


def AsyncHostToDeviceTransferManager_AddMetadata(plugin: Plugin, args: Any) -> None:
    """Metadata says nothing that matters to an emulated transfer."""
