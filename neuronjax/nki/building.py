"""From a call of `nki.isa` to an instruction of the `Program`.

Most parameters are fields of the instruction with the same name. What is called otherwise, or must
be computed, stands in a row of `BUILDERS`.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from neuronjax.errors import UnsupportedProgramError
from neuronjax.nki import constants
from neuronjax.nki.constants import Operator
from neuronjax.nki.trace import Tensor, Trace
from neuronjax.program import (
    dma,
    gpsimd_engine,
    scalar_engine,
    tensor_engine,
    vector_engine,
)
from neuronjax.program.affine import affine
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Dim, Immediate
from neuronjax.program.operators import Activation, AluOp, PartitionReduction

Arguments = dict[str, Any]
Prepare = Callable[[Trace, Arguments], Arguments]
"""Changes the arguments of a call into the instruction's fields, by name."""

_ANYWHERE = frozenset({"name", "priority", "dge_mode"})
"""Parameters that change neither values nor what the rules check."""


@dataclasses.dataclass(frozen=True)
class Builder:
    """How a function becomes an instruction."""

    instruction: type[Instruction]
    prepare: Prepare = lambda trace, arguments: arguments


def build(trace: Trace, name: str, arguments: Arguments) -> Instruction:
    """The instruction of a call.

    Raises:
      UnsupportedProgramError: an argument that the instruction does not take; the text names the
        kernel's line.
    """
    builder = BUILDERS[name]
    given = {key: value for key, value in arguments.items() if key not in _ANYWHERE}
    prepared = builder.prepare(trace, given)
    kind: Any = builder.instruction
    hints = _hints(kind)
    fields = {
        key: _converted(trace, name, key, hints[key], value)
        for key, value in prepared.items()
        if value is not None and value is not constants.engine.unknown
    }
    return builder.instruction(**fields)


@functools.cache
def _hints(instruction: Any) -> dict[str, Any]:
    return typing.get_type_hints(instruction)


def _converted(trace: Trace, function: str, parameter: str, hint: Any, value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.access()
    kinds = (hint, *typing.get_args(hint))
    if isinstance(value, Operator):
        kind: type[enum.Enum]
        for kind in (AluOp, Activation, PartitionReduction):
            name = _OTHER_NAMES.get((kind, value.name), value.name)
            if kind in kinds and name in kind._value2member_map_:
                return kind(name)
        raise UnsupportedProgramError(
            f"{trace.line()}: nki.isa.{function} has no {parameter}=nl.{value.name}."
        )
    if isinstance(value, enum.Enum):
        return value.value
    if Immediate in kinds and isinstance(value, int | float):
        return Immediate(float(value))
    return value


_OTHER_NAMES: Mapping[tuple[type[enum.Enum], str], str] = {(PartitionReduction, "maximum"): "max"}


def _copy(trace: Trace, arguments: Arguments) -> Arguments:
    if arguments.pop("oob_mode") is not constants.oob_mode.error:
        raise UnsupportedProgramError(
            f"{trace.line()}: oob_mode.skip of dma_copy is not built yet."
        )
    arguments.pop("engine")
    return arguments


def _matmul(trace: Trace, arguments: Arguments) -> Arguments:
    accumulate, destination = arguments.pop("accumulate"), arguments["dst"]
    if accumulate is None:
        accumulate = destination in trace.accumulated
    trace.accumulated.add(destination)
    renamed = {
        "stationary_onezero": arguments.pop("is_stationary_onezero"),
        "moving_onezero": arguments.pop("is_moving_onezero"),
        "tile_position": arguments.pop("tile_position") or None,
        "tile_size": arguments.pop("tile_size") or None,
    }
    return {**arguments, **renamed, "start": not accumulate}


def _transpose(trace: Trace, arguments: Arguments) -> Arguments:
    chosen = arguments.pop("engine")
    if chosen not in (constants.engine.unknown, constants.engine.tensor):
        raise UnsupportedProgramError(
            f"{trace.line()}: nc_transpose on {chosen.name} is not built yet; leave engine out."
        )
    return arguments


def _reduce(trace: Trace, arguments: Arguments) -> Arguments:
    arguments.pop("keepdims")  # the shape of dst says it
    axis, rank = arguments.pop("axis"), len(arguments["data"].shape)
    axes = sorted(a % rank for a in ((axis,) if isinstance(axis, int) else axis))
    if not axes or axes != list(range(axes[0], rank)) or axes[0] == 0:
        raise UnsupportedProgramError(
            f"{trace.line()}: axis={axis} of a tensor with {rank} dimensions; tensor_reduce takes "
            "the last ones, and never the partition dimension 0."
        )
    return {**arguments, "axes": len(axes)}


def _scalar_reduce(trace: Trace, arguments: Arguments) -> Arguments:
    if arguments.pop("reverse0"):
        raise UnsupportedProgramError(
            f"{trace.line()}: reverse0 of tensor_scalar_reduce is not built yet; use tensor_scalar "
            "and tensor_reduce."
        )
    return arguments


def _pattern(trace: Trace, arguments: Arguments) -> Arguments:
    dims = tuple(Dim(step, count) for step, count in arguments["pattern"])
    return {**arguments, "pattern": dims, "offset": affine(arguments["offset"])}


def _shuffle(trace: Trace, arguments: Arguments) -> Arguments:
    mask = tuple(arguments.pop("shuffle_mask"))
    return {**arguments, "mask": mask}


def _select(trace: Trace, arguments: Arguments) -> Arguments:
    renamed = {
        "on_true": arguments.pop("on_true_tile"),
        "on_false": arguments.pop("on_false_value"),
    }
    return {**_pattern(trace, arguments), **renamed}


def closed_groups(instructions: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """The instructions, in which a product that another one is added to does not end its group."""
    closed: list[Instruction] = []
    continued: set[Access] = set()
    for instruction in reversed(instructions):
        if isinstance(instruction, tensor_engine.Matmul):
            destination = instruction.dst
            if destination in continued:
                instruction = dataclasses.replace(instruction, stop=False)
            (continued.discard if instruction.start else continued.add)(destination)
        closed.append(instruction)
    return tuple(reversed(closed))


BUILDERS: Mapping[str, Builder] = {
    "dma_copy": Builder(dma.DmaCopy, _copy),
    "tensor_copy": Builder(vector_engine.TensorCopy),
    "memset": Builder(vector_engine.Memset),
    "tensor_copy_predicated": Builder(vector_engine.CopyPredicated),
    "nc_matmul": Builder(tensor_engine.Matmul, _matmul),
    "nc_transpose": Builder(tensor_engine.TensorTranspose, _transpose),
    "tensor_tensor": Builder(vector_engine.TensorTensor),
    "tensor_scalar": Builder(vector_engine.TensorScalar),
    "scalar_tensor_tensor": Builder(vector_engine.ScalarTensorTensor),
    "tensor_reduce": Builder(vector_engine.TensorReduce, _reduce),
    "activation": Builder(scalar_engine.Activate),
    "activation_reduce": Builder(scalar_engine.ActivateReduce),
    "activate2": Builder(scalar_engine.Activate2),
    "exponential": Builder(vector_engine.Exponential),
    "reciprocal": Builder(vector_engine.Reciprocal),
    "tensor_scalar_reduce": Builder(vector_engine.TensorScalarReduce, _scalar_reduce),
    "tensor_scalar_cumulative": Builder(vector_engine.TensorScalarCumulative),
    "select_reduce": Builder(vector_engine.SelectReduce),
    "tensor_partition_reduce": Builder(gpsimd_engine.PartitionReduce),
    "tensor_tensor_scan": Builder(vector_engine.TensorTensorScan),
    "nc_n_gather": Builder(gpsimd_engine.Gather),
    "nc_find_index8": Builder(vector_engine.FindIndex8),
    "nc_match_replace8": Builder(vector_engine.MatchReplace8),
    "nc_stream_shuffle": Builder(vector_engine.StreamShuffle, _shuffle),
    "bn_stats": Builder(vector_engine.BatchNormStats),
    "bn_aggr": Builder(vector_engine.BatchNormAggregate),
    "max8": Builder(vector_engine.Max8),
    "iota": Builder(gpsimd_engine.Iota, _pattern),
    "affine_select": Builder(gpsimd_engine.AffineSelect, _select),
}
"""Function of `nki.isa` -> how."""
