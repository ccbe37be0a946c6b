"""HLO modules: from and to StableHLO, their text, and the fields of their messages.

Field numbers are those of XLA's ``xla/service/hlo.proto``; they never change meaning, but new ones
may replace them. Then the contract tests say which message looks different.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from jax._src import op_shardings
from jax._src.lib import xla_client
from jaxlib import _jax

from neuronjax import protobuf

try:
    from jaxlib import _hlo
except ImportError:  # until jaxlib 0.10.1
    _hlo = _jax


def computation(module: bytes) -> Any:
    """StableHLO bytecode as an XlaComputation of as many parameters as ``main`` has.

    Relies on ``_jax.mlir.mlir_module_to_xla_computation``. Without it:
    ``jax.jit(...).lower(...).compiler_ir("hlo")`` shows what JAX uses instead.
    """
    return _jax.mlir.mlir_module_to_xla_computation(
        module, use_tuple_args=False, return_tuple=False
    )


def to_stablehlo(serialized: bytes) -> bytes:
    """A serialized HloModuleProto as StableHLO bytecode.

    Relies on ``_jax.mlir.hlo_to_stablehlo``. Without it: no other way; the partitioner of Shardy in
    MLIR would have to take the place of XLA's.
    """
    return _jax.mlir.hlo_to_stablehlo(serialized)


def terse_text(serialized: bytes) -> str:
    """The text of a serialized HloModuleProto, without metadata and large constants.

    Relies on ``_hlo.HloModule`` and ``HloPrintOptions``. Without them: the text dump of XLA
    (``xla_dump_hlo_as_text``).
    """
    options = _hlo.HloPrintOptions.short_parsable()
    options.print_metadata = False
    options.print_backend_config = False
    options.print_large_constants = False
    return _hlo.HloModule.from_serialized_hlo_module_proto(serialized).to_string(options)


def parameter_indices(
    module: bytes, shapes: Sequence[tuple[int, ...]], cores: int
) -> list[tuple[Any, ...]]:
    """The part of each parameter that every core gets, as indices into the global array.

    Args:
      module: per-core StableHLO bytecode with ``mhlo.spmd_parameters_shardings``.
      shapes: global shape of each parameter.

    Relies on ``HloModule.spmd_parameters_shardings`` and ``op_sharding_to_indices``. Without them:
    ``HloSharding`` has the tile assignment.
    """
    shardings = _parameter_shardings(computation(module).get_hlo_module())
    return [
        op_shardings.op_sharding_to_indices(
            xla_client.HloSharding.from_proto(sharding), shape, cores
        )
        for sharding, shape in zip(shardings, shapes, strict=True)
    ]


def _parameter_shardings(partitioned: Any) -> Sequence[Any]:
    """The OpSharding of each parameter; XLA says None where there are none."""
    return partitioned.spmd_parameters_shardings or ()


class Tiling(NamedTuple):
    """How a sharding splits an array of some number of dimensions."""

    #: Tiles along each dimension.
    tiles: tuple[int, ...]
    #: The cores that hold each tile, in row-major order of the tiles.
    cores: tuple[tuple[int, ...], ...]


def tilings(
    module: bytes, parameters: Sequence[int], results: Sequence[int], cores: int
) -> tuple[list[Tiling], list[Tiling]]:
    """How the parameters and the results of a partitioned module are split.

    Args:
      module: per-core StableHLO bytecode with ``mhlo.spmd_parameters_shardings`` and
        ``mhlo.spmd_output_sharding``.
      parameters: number of dimensions of each parameter.
      results: number of dimensions of each result.

    Relies on ``HloModule.spmd_parameters_shardings`` and ``spmd_output_sharding``, and on the tile
    assignment of ``HloSharding``. Without them: the texts of the same names in the module.
    """
    partitioned = computation(module).get_hlo_module()
    of_parameters = _parameter_shardings(partitioned)
    of_results = [partitioned.spmd_output_sharding]
    if of_results[0].type == xla_client.OpSharding.Type.TUPLE:
        of_results = of_results[0].tuple_shardings
    return (
        [
            _tiling(sharding, rank, cores)
            for sharding, rank in zip(of_parameters, parameters, strict=False)
        ],
        [
            _tiling(sharding, rank, cores)
            for sharding, rank in zip(of_results, results, strict=False)
        ],
    )


def _tiling(op_sharding: Any, dimensions: int, cores: int) -> Tiling:
    sharding = xla_client.HloSharding.from_proto(op_sharding)
    if not sharding.is_tiled():
        holders = sharding.tile_assignment_devices() or range(cores)
        return Tiling((1,) * dimensions, (tuple(holders),))
    tiles = tuple(sharding.tile_assignment_dimensions()[:dimensions])
    order = sharding.tile_assignment_devices()
    copies = len(order) // math.prod(tiles)
    starts = range(0, len(order), copies)
    return Tiling(tiles, tuple(tuple(order[start : start + copies]) for start in starts))


_PROGRAM_SHAPE = 4
"""Field of HloModuleProto: the entry's ProgramShapeProto."""
_MODULE, _CONFIG = 1, 2
"""Fields of HloModuleProtoWithConfig."""
_ENTRY_LAYOUT, _REPLICAS, _PARTITIONS = 1, 4, 5
"""Fields of HloModuleConfigProto."""


_PARAMETERS, _LAYOUT, _MINOR_TO_MAJOR = 1, 5, 1
"""Fields of ProgramShapeProto, ShapeProto and LayoutProto."""


MODULE_WITH_CONFIG = "hlo_with_config"
"""What the C API calls the format of ``module_with_config``."""


def module_with_config(
    module: bytes, replicas: int, partitions: int, layouts: Sequence[Sequence[int] | None]
) -> bytes:
    """StableHLO bytecode as a serialized HloModuleProtoWithConfig, which JAX reads fastest.

    ``layouts`` are those of the parameters, minor to major; ``None`` is row-major.
    """
    serialized = computation(module).as_serialized_hlo_module_proto()
    entry = protobuf.first(serialized, _PROGRAM_SHAPE)
    if any(layouts):
        orders = iter(layouts)
        entry = protobuf.rewrite(entry, _PARAMETERS, lambda shape: _laid_out(shape, next(orders)))
    config = (
        protobuf.message(_ENTRY_LAYOUT, entry)
        + protobuf.number(_REPLICAS, replicas)
        + protobuf.number(_PARTITIONS, partitions)
    )
    return protobuf.message(_MODULE, serialized) + protobuf.message(_CONFIG, config)


def _laid_out(shape: bytes, order: Sequence[int] | None) -> bytes:
    if order is None:
        return shape
    numbers = protobuf.message(_MINOR_TO_MAJOR, b"".join(map(protobuf.write_varint, order)))
    return protobuf.without(shape, {_LAYOUT}) + protobuf.message(_LAYOUT, numbers)


_COMPUTATIONS, _INSTRUCTIONS = 3, 2
"""Fields of HloModuleProto and HloComputationProto."""
_NAME, _DEVICE_LIST, _MESH_GROUPS = 1, 87, 93
"""Fields of HloInstructionProto: its name; its CollectiveDeviceListProto, whose field 1 is a
repeated ReplicaGroup, whose field 1 is a packed list of ids; and the same as axes of a mesh."""

Groups = Sequence[Collection[int]]
"""Replica groups: the ids of each."""


def write_groups(module: bytes, groups_of: Callable[[str], Groups | None]) -> bytes:
    """A serialized HloModuleProto with replica groups written as lists.

    ``groups_of`` gives those of an instruction by its name, or ``None`` to leave it as it is.
    """
    return protobuf.rewrite(
        module,
        _COMPUTATIONS,
        lambda computation: protobuf.rewrite(
            computation, _INSTRUCTIONS, lambda instruction: _write(instruction, groups_of)
        ),
    )


def _write(instruction: bytes, groups_of: Callable[[str], Groups | None]) -> bytes:
    groups = groups_of(protobuf.first(instruction, _NAME).decode())
    if groups is None:
        return instruction
    lists = b"".join(
        protobuf.message(1, protobuf.message(1, b"".join(map(protobuf.write_varint, group))))
        for group in groups
    )
    bare = protobuf.without(instruction, {_DEVICE_LIST, _MESH_GROUPS})
    return bare + protobuf.message(_DEVICE_LIST, lists)
