"""PJRT_Buffer calls. What a buffer's record answers alone is in ``getters.py``."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from neuronjax.errors import DeletedBufferError
from neuronjax.hlo.layouts import row_major
from neuronjax.pjrt import abi
from neuronjax.pjrt.handles import WORDS
from neuronjax.pjrt.layouts import read_order
from neuronjax.pjrt.plugin_state import Plugin
from neuronjax.pjrt.values import RECORD_BYTES, first_of
from neuronjax.runtime.client import failure_of
from neuronjax.runtime.event import Event
from neuronjax.runtime.value import ShardedValue

_READY_EVENT = abi.word("Buffer_ReadyEvent", "event")


def buffer_destroy_last(plugin: Plugin, address: int) -> None:
    """``Buffer_Destroy`` of the last shard of a value; the others are only counted."""
    handle = WORDS[(address >> 3) + abi.OBJECT]
    plugin.values.forget(first_of(handle))


def Buffer_Destroy(plugin: Plugin, address: int) -> None:
    plugin.values.destroy(WORDS[(address >> 3) + abi.OBJECT])


def collect(plugin: Plugin, _: Any) -> None:
    """Ends the small values that were destroyed."""
    plugin.values.collect()


def Buffer_ReadyEvent(plugin: Plugin, address: int) -> None:
    arguments = address >> 3
    handle = WORDS[arguments + abi.OBJECT]
    WORDS[arguments + _READY_EVENT] = plugin.new_event(_ready_event(plugin, handle))


def _ready_event(plugin: Plugin, handle: int) -> Event:
    value, index = plugin.values.find(handle)
    array = value.array
    if array is None:
        raise DeletedBufferError("a deleted buffer has no ready event")
    if value.event is not None:
        return value.event
    client = plugin.client_of_value(value)
    if not client.is_ready(array):
        return client.when_ready(array)
    event = Event()
    event.set(failure_of(array))
    if event.error is None:
        base = handle - index * RECORD_BYTES
        plugin.values.mark(base, range(len(value.spec.placement)), "ready")
    return event


def Buffer_GetMemoryLayout(plugin: Plugin, args: Any) -> None:
    spec = plugin.values.find(args.buffer)[0].spec
    order = spec.layout or row_major(len(spec.tensor.shape))
    layout = args.layout
    layout.struct_size = ctypes.sizeof(abi.MemoryLayout)
    layout.type = abi.LAYOUT_TILED
    layout.values = plugin.numbers(order)
    layout.num_values = len(order)
    layout.num_tiles = 0


def Buffer_OnDeviceSizeInBytes(plugin: Plugin, args: Any) -> None:
    args.on_device_size_in_bytes = plugin.values.find(args.buffer)[0].spec.shard_bytes


def Buffer_Delete(plugin: Plugin, args: Any) -> None:
    value, index = plugin.values.find(args.buffer)
    value.delete(index)
    plugin.values.mark(args.buffer - index * RECORD_BYTES, range(index, index + 1), "deleted")


def Buffer_UnsafePointer(plugin: Plugin, args: Any) -> None:
    value, index = plugin.values.find(args.buffer)
    args.buffer_pointer = value.shard(index).unsafe_buffer_pointer()


def Buffer_OpaqueDeviceMemoryDataPointer(plugin: Plugin, args: Any) -> None:
    value, index = plugin.values.find(args.buffer)
    args.device_memory_ptr = value.shard(index).unsafe_buffer_pointer()


def Buffer_IncreaseExternalReferenceCount(plugin: Plugin, args: Any) -> None:
    value, _ = plugin.values.find(args.buffer)
    plugin.external_references.setdefault(args.buffer, []).append(value.array)


def Buffer_DecreaseExternalReferenceCount(plugin: Plugin, args: Any) -> None:
    arrays = plugin.external_references.get(args.buffer)
    if arrays:
        arrays.pop()
    if not arrays:
        plugin.external_references.pop(args.buffer, None)


def Buffer_CopyToDevice(plugin: Plugin, args: Any) -> None:
    device = plugin.handles[args.dst_device]
    args.dst_buffer = _copy(plugin, args.buffer, device, device.memories[0].kind)


def Buffer_CopyToMemory(plugin: Plugin, args: Any) -> None:
    memory = plugin.handles[args.dst_memory]
    args.dst_buffer = _copy(plugin, args.buffer, memory.device, memory.kind)


def _copy(plugin: Plugin, handle: int, device: Any, kind: str) -> int:
    value, index = plugin.values.find(handle)
    state = plugin.client_of(device)
    return state.add_value(state.client.copy(value, index, device, kind))


def _word(field: str) -> int:
    return abi.word("Buffer_ToHostBuffer", field)


_SOURCE, _LAYOUT, _EVENT = _word("src"), _word("host_layout"), _word("event")
_TO, _TO_SIZE = _word("dst"), _word("dst_size")


def Buffer_ToHostBuffer(plugin: Plugin, address: int) -> None:
    at = address >> 3
    value, index = plugin.values.find(WORDS[at + _SOURCE])
    shard = value.shard(index)
    spec, to = value.spec, WORDS[at + _TO]
    if not to:
        WORDS[at + _TO_SIZE] = spec.host_bytes
        return
    size = WORDS[at + _TO_SIZE]
    if size < spec.host_bytes:
        raise ValueError(f"the destination has {size} bytes, but {spec.host_bytes} are needed")
    order = read_order(WORDS[at + _LAYOUT], spec.tensor.shape)
    if order is None and not spec.packed:
        copy = partial(_copy_bytes, shard, to, spec.host_bytes)
    else:
        copy = partial(_copy_ordered, shard, to, order)
    WORDS[at + _EVENT] = _when_copied(plugin, value, shard, copy)


def _copy_bytes(shard: Any, to: int, size: int) -> None:
    """Copies a single-core array that lies in memory as it should on the host."""
    if size:
        shard.block_until_ready()  # raises what the run raised
        ctypes.memmove(to, shard.unsafe_buffer_pointer(), size)


def _copy_ordered(shard: Any, to: int, minor_to_major: tuple[int, ...] | None) -> None:
    _write(_reorder(np.asarray(shard), minor_to_major), to)


def Buffer_CopyRawToHost(plugin: Plugin, args: Any) -> None:
    value, index = plugin.values.find(args.buffer)
    offset_, size, dst = args.offset, args.transfer_size, args.dst
    if offset_ < 0 or size < 0 or offset_ + size > value.spec.shard_bytes:
        raise ValueError(
            f"bytes {offset_}-{offset_ + size} are out of bounds: the buffer has "
            f"{value.spec.shard_bytes}"
        )

    shard = value.shard(index)

    def copy() -> None:
        raw = np.ascontiguousarray(np.asarray(shard)).reshape(-1).view(np.uint8)
        _write(raw[offset_ : offset_ + size], dst)

    args.event = _when_copied(plugin, value, shard, copy)


def _when_copied(plugin: Plugin, value: ShardedValue, shard: Any, copy: Callable[[], None]) -> int:
    """Runs ``copy``, which waits for the shard, now if that is ready, else beside; its event."""
    if value.error is not None and value.event is not None and not value.event.is_ready():
        return plugin.new_event(value.event)
    if value.error is not None:  # a copy: the value outlives frames that the traceback would keep
        raise type(value.error)(*value.error.args)
    client = plugin.client_of_value(value)
    if client.is_ready(shard):
        copy()
        return plugin.ready_event
    event = Event()

    def job() -> None:
        try:
            copy()
        except Exception as error:
            event.set(error)
        else:
            event.set()

    client.waiters.submit(job)
    return plugin.new_event(event)


def _reorder(array: np.ndarray, minor_to_major: tuple[int, ...] | None) -> np.ndarray:
    return array if minor_to_major is None else array.transpose(minor_to_major[::-1])


def _write(array: np.ndarray, address: int) -> None:
    contiguous = np.ascontiguousarray(array)
    ctypes.memmove(address, contiguous.ctypes.data, contiguous.nbytes)
