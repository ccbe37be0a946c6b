"""The PJRT C API 0.90 as data: the argument record of every call, in the order of its slot.

Source: the public header ``xla/pjrt/c/pjrt_c_api.h``, version 0.90. A field is ``name:code``; the
codes are in ``CODES``. Every argument record begins with ``struct_size`` and ``extension_start``.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

API_VERSION = (0, 90)

CODES: dict[str, Any] = {
    "p": ctypes.c_void_p,
    "z": ctypes.c_size_t,
    "q": ctypes.c_int64,
    "Q": ctypes.c_uint64,
    "i": ctypes.c_int32,
    "b": ctypes.c_bool,
    "f": ctypes.c_float,
}

CALLS: dict[str, str] = {
    "Error_Destroy": "error:p",
    "Error_Message": "error:p message:p message_size:z",
    "Error_GetCode": "error:p code:i",
    "Plugin_Initialize": "",
    "Plugin_Attributes": "attributes:p num_attributes:z",
    "Event_Destroy": "event:p",
    "Event_IsReady": "event:p is_ready:b",
    "Event_Error": "event:p",
    "Event_Await": "event:p",
    "Event_OnReady": "event:p callback:p user_arg:p",
    "Client_Create": (
        "create_options:p num_options:z kv_get_callback:p kv_get_user_arg:p kv_put_callback:p "
        "kv_put_user_arg:p client:p kv_try_get_callback:p kv_try_get_user_arg:p"
    ),
    "Client_Destroy": "client:p",
    "Client_PlatformName": "client:p platform_name:p platform_name_size:z",
    "Client_ProcessIndex": "client:p process_index:i",
    "Client_PlatformVersion": "client:p platform_version:p platform_version_size:z",
    "Client_Devices": "client:p devices:p num_devices:z",
    "Client_AddressableDevices": "client:p addressable_devices:p num_addressable_devices:z",
    "Client_LookupDevice": "client:p id:i device:p",
    "Client_LookupAddressableDevice": "client:p local_hardware_id:i addressable_device:p",
    "Client_AddressableMemories": "client:p addressable_memories:p num_addressable_memories:z",
    "Client_Compile": "client:p program:p compile_options:p compile_options_size:z executable:p",
    "Client_DefaultDeviceAssignment": (
        "client:p num_replicas:i num_partitions:i default_assignment_size:z default_assignment:p"
    ),
    "Client_BufferFromHostBuffer": (
        "client:p data:p type:i dims:p num_dims:z byte_strides:p num_byte_strides:z "
        "host_buffer_semantics:i device:p memory:p device_layout:p done_with_host_buffer:p "
        "buffer:p"
    ),
    "DeviceDescription_Id": "device_description:p id:i",
    "DeviceDescription_ProcessIndex": "device_description:p process_index:i",
    "DeviceDescription_Attributes": "device_description:p num_attributes:z attributes:p",
    "DeviceDescription_Kind": "device_description:p device_kind:p device_kind_size:z",
    "DeviceDescription_DebugString": "device_description:p debug_string:p debug_string_size:z",
    "DeviceDescription_ToString": "device_description:p to_string:p to_string_size:z",
    "Device_GetDescription": "device:p device_description:p",
    "Device_IsAddressable": "device:p is_addressable:b",
    "Device_LocalHardwareId": "device:p local_hardware_id:i",
    "Device_AddressableMemories": "device:p memories:p num_memories:z",
    "Device_DefaultMemory": "device:p memory:p",
    "Device_MemoryStats": (
        "device:p bytes_in_use:q peak_bytes_in_use:q peak_bytes_in_use_is_set:b num_allocs:q "
        "num_allocs_is_set:b largest_alloc_size:q largest_alloc_size_is_set:b bytes_limit:q "
        "bytes_limit_is_set:b bytes_reserved:q bytes_reserved_is_set:b peak_bytes_reserved:q "
        "peak_bytes_reserved_is_set:b bytes_reservable_limit:q "
        "bytes_reservable_limit_is_set:b largest_free_block_bytes:q "
        "largest_free_block_bytes_is_set:b pool_bytes:q pool_bytes_is_set:b peak_pool_bytes:q "
        "peak_pool_bytes_is_set:b"
    ),
    "Memory_Id": "memory:p id:i",
    "Memory_Kind": "memory:p kind:p kind_size:z",
    "Memory_DebugString": "memory:p debug_string:p debug_string_size:z",
    "Memory_ToString": "memory:p to_string:p to_string_size:z",
    "Memory_AddressableByDevices": "memory:p devices:p num_devices:z",
    "Executable_Destroy": "executable:p",
    "Executable_Name": "executable:p executable_name:p executable_name_size:z",
    "Executable_NumReplicas": "executable:p num_replicas:z",
    "Executable_NumPartitions": "executable:p num_partitions:z",
    "Executable_NumOutputs": "executable:p num_outputs:z",
    "Executable_SizeOfGeneratedCodeInBytes": "executable:p size_in_bytes:q",
    "Executable_GetCostAnalysis": "executable:p num_properties:z properties:p",
    "Executable_OutputMemoryKinds": (
        "executable:p num_outputs:z memory_kinds:p memory_kind_sizes:p"
    ),
    "Executable_OptimizedProgram": "executable:p program:p",
    "Executable_Serialize": (
        "executable:p serialized_bytes:p serialized_bytes_size:z serialized_executable:p "
        "serialized_executable_deleter:p"
    ),
    "LoadedExecutable_Destroy": "executable:p",
    "LoadedExecutable_GetExecutable": "loaded_executable:p executable:p",
    "LoadedExecutable_AddressableDevices": (
        "executable:p addressable_devices:p num_addressable_devices:z"
    ),
    "LoadedExecutable_Delete": "executable:p",
    "LoadedExecutable_IsDeleted": "executable:p is_deleted:b",
    "LoadedExecutable_Execute": (
        "executable:p options:p argument_lists:p num_devices:z num_args:z output_lists:p "
        "device_complete_events:p execute_device:p"
    ),
    "Executable_DeserializeAndLoad": (
        "client:p serialized_executable:p serialized_executable_size:z loaded_executable:p "
        "overridden_serialized_compile_options:p overridden_serialized_compile_options_size:z"
    ),
    "LoadedExecutable_Fingerprint": (
        "executable:p executable_fingerprint:p executable_fingerprint_size:z"
    ),
    "Buffer_Destroy": "buffer:p",
    "Buffer_ElementType": "buffer:p type:i",
    "Buffer_Dimensions": "buffer:p dims:p num_dims:z",
    "Buffer_UnpaddedDimensions": "buffer:p unpadded_dims:p num_dims:z",
    "Buffer_DynamicDimensionIndices": "buffer:p dynamic_dim_indices:p num_dynamic_dims:z",
    "Buffer_GetMemoryLayout": "buffer:p layout:L",
    "Buffer_OnDeviceSizeInBytes": "buffer:p on_device_size_in_bytes:z",
    "Buffer_Device": "buffer:p device:p",
    "Buffer_Memory": "buffer:p memory:p",
    "Buffer_Delete": "buffer:p",
    "Buffer_IsDeleted": "buffer:p is_deleted:b",
    "Buffer_CopyToDevice": "buffer:p dst_device:p dst_buffer:p",
    "Buffer_ToHostBuffer": "src:p host_layout:p dst:p dst_size:z event:p",
    "Buffer_IsOnCpu": "buffer:p is_on_cpu:b",
    "Buffer_ReadyEvent": "buffer:p event:p",
    "Buffer_UnsafePointer": "buffer:p buffer_pointer:p",
    "Buffer_IncreaseExternalReferenceCount": "buffer:p",
    "Buffer_DecreaseExternalReferenceCount": "buffer:p",
    "Buffer_OpaqueDeviceMemoryDataPointer": "buffer:p device_memory_ptr:p",
    "CopyToDeviceStream_Destroy": "stream:p",
    "CopyToDeviceStream_AddChunk": "stream:p chunk:p transfer_complete:p",
    "CopyToDeviceStream_TotalBytes": "stream:p total_bytes:q",
    "CopyToDeviceStream_GranuleSize": "stream:p granule_size_in_bytes:q",
    "CopyToDeviceStream_CurrentBytes": "stream:p current_bytes:q",
    "TopologyDescription_Create": (
        "topology_name:p topology_name_size:z create_options:p num_options:z topology:p"
    ),
    "TopologyDescription_Destroy": "topology:p",
    "TopologyDescription_PlatformName": "topology:p platform_name:p platform_name_size:z",
    "TopologyDescription_PlatformVersion": "topology:p platform_version:p platform_version_size:z",
    "TopologyDescription_GetDeviceDescriptions": "topology:p descriptions:p num_descriptions:z",
    "TopologyDescription_Serialize": (
        "topology:p serialized_bytes:p serialized_bytes_size:z serialized_topology:p "
        "serialized_topology_deleter:p"
    ),
    "TopologyDescription_Attributes": "topology:p attributes:p num_attributes:z",
    "Compile": (
        "topology:p program:p compile_options:p compile_options_size:z client:p executable:p"
    ),
    "Executable_OutputElementTypes": "executable:p output_types:p num_output_types:z",
    "Executable_OutputDimensions": "executable:p num_outputs:z dims:p dim_sizes:p",
    "Buffer_CopyToMemory": "buffer:p dst_memory:p dst_buffer:p",
    "Client_CreateViewOfDeviceBuffer": (
        "client:p device_buffer_ptr:p dims:p num_dims:z element_type:i layout:p device:p "
        "on_delete_callback:p on_delete_callback_arg:p stream:z buffer:p memory:p"
    ),
    "Executable_Fingerprint": (
        "executable:p executable_fingerprint:p executable_fingerprint_size:z"
    ),
    "Client_TopologyDescription": "client:p topology:p",
    "Executable_GetCompiledMemoryStats": (
        "executable:p generated_code_size_in_bytes:q argument_size_in_bytes:q "
        "output_size_in_bytes:q alias_size_in_bytes:q temp_size_in_bytes:q "
        "host_generated_code_size_in_bytes:q host_argument_size_in_bytes:q "
        "host_output_size_in_bytes:q host_alias_size_in_bytes:q host_temp_size_in_bytes:q "
        "peak_memory_in_bytes:q total_size_in_bytes:q"
    ),
    "Memory_Kind_Id": "memory:p kind_id:i",
    "ExecuteContext_Create": "context:p",
    "ExecuteContext_Destroy": "context:p",
    "Buffer_CopyRawToHost": "buffer:p dst:p offset:q transfer_size:q event:p",
    "AsyncHostToDeviceTransferManager_Destroy": "transfer_manager:p",
    "AsyncHostToDeviceTransferManager_TransferData": (
        "transfer_manager:p buffer_index:i data:p offset:q transfer_size:q is_last_transfer:b "
        "done_with_h2d_transfer:p"
    ),
    "Client_CreateBuffersForAsyncHostToDevice": (
        "client:p shape_specs:p num_shape_specs:z device_layouts:p num_device_layouts:z "
        "memory:p transfer_manager:p"
    ),
    "AsyncHostToDeviceTransferManager_RetrieveBuffer": (
        "transfer_manager:p buffer_index:i buffer_out:p"
    ),
    "AsyncHostToDeviceTransferManager_Device": "transfer_manager:p device_out:p",
    "AsyncHostToDeviceTransferManager_BufferCount": "transfer_manager:p buffer_count:z",
    "AsyncHostToDeviceTransferManager_BufferSize": (
        "transfer_manager:p buffer_index:i buffer_size:z"
    ),
    "AsyncHostToDeviceTransferManager_SetBufferError": (
        "transfer_manager:p buffer_index:i error_code:i error_message:p error_message_size:z"
    ),
    "AsyncHostToDeviceTransferManager_AddMetadata": (
        "transfer_manager:p transfer_metadata:p num_metadata:z"
    ),
    "Client_DmaMap": "client:p data:p size:z",
    "Client_DmaUnmap": "client:p data:p",
    "Client_CreateUninitializedBuffer": (
        "client:p shape_dims:p shape_num_dims:z shape_element_type:i shape_layout:p device:p "
        "memory:p buffer:p"
    ),
    "Client_UpdateGlobalProcessInfo": "client:p process_infos:p num_process_infos:z",
    "TopologyDescription_Deserialize": (
        "serialized_topology:p serialized_topology_size:z topology:p"
    ),
    "Client_CreateAliasBuffer": (
        "client:p memory:p shape_dims:p shape_num_dims:z shape_element_type:i shape_layout:p "
        "alias_buffer:p fulfill_alias_buffer_cb:p"
    ),
    "Client_FulfillAliasBuffer": (
        "client:p buffer:p status_code:i error_message:p error_message_size:z "
        "fulfill_alias_buffer_cb:p"
    ),
    "LoadedExecutable_GetDeviceAssignment": (
        "executable:p serialized_bytes:p serialized_bytes_size:z "
        "serialized_device_assignment:p serialized_device_assignment_deleter:p"
    ),
    "Client_CreateErrorBuffer": (
        "client:p error_code:i error_message:p error_message_size:z shape_dims:p "
        "shape_num_dims:z shape_element_type:i shape_layout:p memory:p buffer:p"
    ),
    "AsyncHostToDeviceTransferManager_TransferLiteral": (
        "transfer_manager:p buffer_index:i data:p shape_dims:p shape_num_dims:z "
        "shape_element_type:i shape_layout:p done_with_h2d_transfer:p"
    ),
    "Buffer_CopyRawToHostFuture": (
        "buffer:p offset:q transfer_size:q event:p callback_data:p future_ready_callback:p"
    ),
    "Device_PoisonExecution": (
        "device:p launch_id:i error_code:i error_message:p error_message_size:z poisoned:b"
    ),
    "Device_CreateAsyncTrackingEvent": "device:p description:p description_size:z event:p",
    "AsyncTrackingEvent_Destroy": "event:p",
    "Executable_GetCompileOptions": (
        "executable:p serialized_bytes:p serialized_bytes_size:z serialized_compile_options:p "
        "serialized_compile_options_deleter:p"
    ),
    "Buffer_DonateWithControlDependency": (
        "buffer:p callback_data:p dependency_ready_callback:p out_buffer:p"
    ),
    "Event_Create": "event:p",
    "Event_Set": "event:p error_code:i error_message:p error_message_size:z",
}

RECORDS: dict[str, str] = {
    "Extension_Base": "struct_size:z type:i next:p",
    "Api_Version": "struct_size:z extension_start:p major_version:i minor_version:i",
    "NamedValue": "struct_size:z extension_start:p name:p name_size:z type:i value:q value_size:z",
    "Program": "struct_size:z extension_start:p code:p code_size:z format:p format_size:z",
    "ShapeSpec": "struct_size:z extension_start:p dims:p num_dims:z element_type:i",
    "ExecuteOptions": (
        "struct_size:z extension_start:p send_callbacks:p recv_callbacks:p num_send_ops:z "
        "num_recv_ops:z launch_id:i non_donatable_input_indices:p "
        "num_non_donatable_input_indices:z context:p call_location:p num_tasks:z task_ids:p "
        "incarnation_ids:p"
    ),
    "Buffer_CopyRawToHostFuture_Callback": (
        "struct_size:z callback_data:p error_code:i error_message:p error_message_size:z dst:p"
    ),
}

ERROR_CODES = {
    "CANCELLED": 1,
    "UNKNOWN": 2,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "OUT_OF_RANGE": 11,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "DATA_LOSS": 15,
    "UNAUTHENTICATED": 16,
}

NAMED_VALUE_STRING, NAMED_VALUE_INT64, NAMED_VALUE_INT64_LIST = 0, 1, 2
NAMED_VALUE_FLOAT, NAMED_VALUE_BOOL = 3, 4

EXTENSION_PROFILER, EXTENSION_LAYOUTS = 1, 4

LAYOUT_TILED, LAYOUT_STRIDES = 0, 1


class MemoryLayout(ctypes.Structure):
    """``PJRT_Buffer_MemoryLayout``: a union of tiled and strided layouts and its tag.

    The union is laid out as its larger member, the tiled one: two header words, ``minor_to_major``
    and its size, and three words of tiles. A strided layout uses the first four.
    """

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("body_size", ctypes.c_size_t),
        ("body_extension_start", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("num_values", ctypes.c_size_t),
        ("tile_dims", ctypes.c_void_p),
        ("tile_dim_sizes", ctypes.c_void_p),
        ("num_tiles", ctypes.c_size_t),
        ("type", ctypes.c_int32),
    )


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
EVENT_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def structure(name: str, spec: str) -> Any:
    """The ctypes structure of a record with the fields ``spec``."""
    codes = CODES | {"L": MemoryLayout}
    fields = [(field, codes[code]) for field, code in (f.split(":") for f in spec.split())]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def argument_structure(call: str, spec: str) -> Any:
    """The ctypes structure of an argument record with the fields ``spec`` after its header."""
    return structure(f"PJRT_{call}_Args", f"struct_size:z extension_start:p {spec}")


@cache
def args(call: str) -> Any:
    """The ctypes structure of the argument record of ``call`` (``"Buffer_Device"``)."""
    return argument_structure(call, CALLS[call])


def word(call: str, field: str) -> int:
    """Number of the 64-bit word of an argument record that holds a field."""
    return getattr(args(call), field).offset // 8


OBJECT = 2
"""Number of the word of every argument record that holds the object of the call: it comes right
behind the two words of the header."""


@cache
def record(name: str) -> Any:
    """The ctypes structure of a record that is not an argument (``"Program"``)."""
    return structure(f"PJRT_{name}", RECORDS[name])


class Api(ctypes.Structure):
    """``PJRT_Api``: the table of calls handed to JAX."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("version_size", ctypes.c_size_t),
        ("version_extension_start", ctypes.c_void_p),
        ("major_version", ctypes.c_int32),
        ("minor_version", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in CALLS),
    )
