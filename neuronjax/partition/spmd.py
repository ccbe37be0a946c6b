"""The per-core program of a global program, by XLA's own SPMD partitioner in a compile.

The module is compiled once for N partitions with a dump of the partitioner's result, and made to
stop before code generation (``stop.py``). The per-core program then runs as N replicas: partition
ids become replica ids, collectives lose their channels.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

from neuronjax.errors import PartitionError
from neuronjax.hlo import module as hlo
from neuronjax.hlo.structure import inline_calls
from neuronjax.hlo.tuples import flatten_tuples
from neuronjax.jaxlib_api import hlo as xla_hlo
from neuronjax.jaxlib_api import partitioner_dump
from neuronjax.jaxlib_api.mlir import PassManager, ir
from neuronjax.partition import stop
from neuronjax.partition.combine import combine_all_reduces
from neuronjax.partition.groups import mesh_groups

PartitionCompile = Callable[[bytes, dict[str, Any]], None]
"""Compiles a module, whose main has got one more result, for its partitions with the given debug
options; what it returns or raises does not matter once the dump is there."""


def partition(module: bytes, devices: int, compile_for_dump: PartitionCompile) -> bytes:
    """The per-core program of ``module`` (bytecode with shardings) over ``devices`` cores.

    Its module attributes ``mhlo.spmd_output_sharding`` and ``mhlo.spmd_parameters_shardings`` hold
    the HloSharding texts of results and arguments, and ``mhlo.num_replicas`` the number of cores.

    Raises:
      PartitionError: XLA did not produce a partitioned module.
    """
    with tempfile.TemporaryDirectory(prefix="neuronjax-partition-") as folder:
        options = partitioner_dump.debug_options(folder)
        try:
            compile_for_dump(stop.insert(module), options)
        except Exception:  # expected: see stop.py; what matters is the dump
            if not partitioner_dump.files(folder):
                raise
        dumps = partitioner_dump.files(folder)
        if len(dumps) != 1:
            raise PartitionError(
                f"XLA wrote {len(dumps)} partitioned modules where one was expected; if XLA_FLAGS "
                "is set, try without it."
            )
        serialized = partitioner_dump.hlo_module(dumps[0])
        if not serialized:
            raise PartitionError("XLA's dump of the partitioned module is damaged")
    return _as_replicas(serialized, devices)


def _as_replicas(serialized: bytes, devices: int) -> bytes:
    groups = mesh_groups(xla_hlo.terse_text(serialized), devices)
    if groups:
        serialized = xla_hlo.write_groups(serialized, groups.get)
    with hlo.context():
        module = hlo.load(xla_hlo.to_stablehlo(serialized))
        _remove_uncalled(module)
        flatten_tuples(module)
        stop.remove(module)
        rewrite_to_replicas(module)
        inline_calls(module, _is_manual_computation)  # as XLA does next
        combine_all_reduces(module)
        count = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), devices)
        module.operation.attributes[hlo.NUM_REPLICAS] = count
        return hlo.dump(module)


def _remove_uncalled(module: ir.Module) -> None:
    """Removes the functions that stand for regions of HLO: their ops have the regions as well."""
    PassManager.parse("builtin.module(symbol-dce)", context=module.context).run(module.operation)


def _is_manual_computation(function: str) -> bool:
    """Whether a function is the body of a ``shard_map``, which the partitioner keeps apart."""
    return function.startswith(partitioner_dump.MANUAL_COMPUTATION)


_CHANNELLED = frozenset({
    "stablehlo.all_gather", "stablehlo.all_reduce", "stablehlo.reduce_scatter",
    "stablehlo.all_to_all", "stablehlo.collective_broadcast", "stablehlo.collective_permute",
})  # fmt: skip


def rewrite_to_replicas(module: ir.Module) -> None:
    """Turns partition-wise ops into replica-wise ones, in place. Needs a current MLIR context."""
    partition_ids: list[Any] = []

    def visit(op: Any) -> ir.WalkResult:
        if op.name in _CHANNELLED:
            for attribute in ("channel_handle", "use_global_device_ids"):
                if attribute in op.attributes:
                    del op.attributes[attribute]
        elif op.name == "stablehlo.partition_id":
            partition_ids.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in partition_ids:
        with ir.InsertionPoint(op), op.location:
            replica = ir.Operation.create("stablehlo.replica_id", results=[op.results[0].type])
        op.results[0].replace_all_uses_with(replica.results[0])
        op.erase()
