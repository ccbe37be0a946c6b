"""CompileOptions of XLA, and the assignment of devices in them.

``CompileOptions`` is the message in which JAX says how to compile. If the class goes, its proto is
``xla/pjrt/proto/compile_options.proto`` and ``neuronjax.protobuf`` reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax._src.lib import xla_client

from neuronjax import protobuf


def new() -> Any:
    """A CompileOptions of one replica and one partition."""
    return xla_client.CompileOptions()


def parse(serialized: bytes) -> Any:
    """CompileOptions from their proto."""
    return xla_client.CompileOptions.ParseFromString(serialized)


def assign(options: Any, devices: np.ndarray) -> None:
    """Sets counts and device assignment from a (replicas, partitions) table of device ids."""
    replicas, partitions = devices.shape
    for target in (options, options.executable_build_options):
        target.num_replicas = replicas
        target.num_partitions = partitions
        target.device_assignment = xla_client.DeviceAssignment.create(devices)


def propagate_shardings(
    options: Any, to_parameters: Sequence[bool], to_results: Sequence[bool]
) -> None:
    """Sets where the partitioner may choose shardings: a flag for each value, or one for all."""
    build = options.executable_build_options
    build.allow_spmd_sharding_propagation_to_parameters = list(to_parameters)
    build.allow_spmd_sharding_propagation_to_output = list(to_results)


def shardings_propagated(options: Any) -> tuple[list[bool], list[bool]]:
    """The flags of ``propagate_shardings``: for parameters and for results."""
    build = options.executable_build_options
    return (
        list(build.allow_spmd_sharding_propagation_to_parameters),
        list(build.allow_spmd_sharding_propagation_to_output),
    )


def disabled_passes(options: Any) -> str:
    """The passes that the environment's ``XLA_FLAGS`` leave out, separated by commas.

    Relies on new options having XLA's flags as their debug options.
    """
    return options.executable_build_options.debug_options.xla_disable_hlo_passes


def assignment(options: Any) -> np.ndarray | None:
    """The (replicas, partitions) table of device ids, if one is set."""
    devices = options.executable_build_options.device_assignment or options.device_assignment
    return None if devices is None else read_device_assignment(devices.serialize())


def read_device_assignment(data: bytes) -> np.ndarray:
    """DeviceAssignmentProto as an int64 table of (replicas, computations).

    Fields: 1 replica count, 2 computation count, 3 repeated message {1: packed device ids}.
    """
    columns: list[list[int]] = []
    for field, value in protobuf.fields(data):
        if field == 3 and isinstance(value, bytes):
            column: list[int] = []
            for inner, entry in protobuf.fields(value):
                if inner == 1:
                    column += protobuf.packed(entry) if isinstance(entry, bytes) else [entry]
            columns.append(column)
    return np.array(columns, dtype=np.int64).T


def write_device_assignment(table: Sequence[Sequence[int]] | np.ndarray) -> bytes:
    """The inverse of ``read_device_assignment``."""
    ids = np.asarray(table)
    data = protobuf.number(1, ids.shape[0]) + protobuf.number(2, ids.shape[1])
    for column in ids.T:
        packed = b"".join(protobuf.write_varint(int(i)) for i in column)
        data += protobuf.message(3, protobuf.message(1, packed))
    return data
