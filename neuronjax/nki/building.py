"""Calls of `nki.isa` become instructions of the `Program`.

Most parameters are fields of the instruction with the same name. A row of `BUILDERS` has what is
called otherwise, and a function of `arguments` for what must be computed.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from neuronjax.errors import UnsupportedProgramError, quoted
from neuronjax.machine.specs import Engine
from neuronjax.nki import arguments as prepared
from neuronjax.nki import constants
from neuronjax.nki.arguments import Arguments
from neuronjax.nki.constants import Operator
from neuronjax.nki.dynamic_loops import VirtualRegister
from neuronjax.nki.scheduling import NkiInstruction
from neuronjax.nki.signatures import SIGNATURES, signature
from neuronjax.nki.tensor import Tensor
from neuronjax.nki.tracing import Trace
from neuronjax.program import (
    control,
    dma,
    gpsimd_engine,
    random_numbers,
    tensor_engine,
    vector_engine,
)
from neuronjax.program.affine import Affine, affine
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Immediate, Register
from neuronjax.program.operators import Activation, AluOp, PartitionReduction
from neuronjax.program.table import INSTRUCTIONS

Kind: TypeAlias = type | types.UnionType | types.GenericAlias
"""The annotation of a field, or one of its alternatives."""

Prepare = Callable[[Trace, Arguments], Arguments]
"""Changes the arguments of a call into the instruction's fields, by name."""


@dataclasses.dataclass(frozen=True)
class Builder:
    """How a function becomes an instruction."""

    instruction: type[Instruction]
    prepare: Prepare = lambda trace, arguments: arguments
    #: Parameter -> field, where the names differ.
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)


def build(trace: Trace, name: str, arguments: Arguments) -> Instruction:
    """The instruction of a call.

    Raises:
      UnsupportedProgramError: an argument that the instruction does not take; the text names the
        kernel's line.
    """
    usual = BUILDERS[name]
    first = ON_ENGINE.get((name, arguments.get("engine")), usual)
    builder, taken = first, _taken(name)
    for parameter, value in arguments.items():
        kinds = taken.get(parameter)
        if kinds is not None:
            _check_given(trace, name, parameter, kinds, value)
        if builder is first and _is_indexed(value):
            builder = INDEXED.get((name, parameter), builder)
    given = {key: value for key, value in arguments.items() if key != "name"}
    kind: Any = builder.instruction
    takers, fields = _takers(kind), {}
    for parameter, value in builder.prepare(trace, given).items():
        key = builder.renamed.get(parameter, parameter)
        if value is not None and value is not constants.engine.unknown:
            fields[key] = _converted(trace, name, parameter, takers[key], value)
    return builder.instruction(**fields)


def _is_indexed(value: object) -> bool:
    """Whether it is a tensor whose rows a tile names, or has one."""
    if isinstance(value, Tensor):
        return value.index is not None
    return isinstance(value, list | tuple) and any(map(_is_indexed, value))


@functools.cache
def _taken(function: str) -> Mapping[str, frozenset[Kind]]:
    """What the instruction's fields take, by the parameters that are fields; None among it if the
    parameter may be left out."""
    builder = BUILDERS[function]
    kind: Any = builder.instruction
    hints, taken = _hints(kind), {}
    for name, parameter in signature(function).parameters.items():
        hint = hints.get(builder.renamed.get(name, name))
        if hint is not None:
            optional = {types.NoneType} if parameter.default is None else set()
            taken[name] = frozenset({*(typing.get_args(hint) or (hint,)), *optional})
    return taken


def _check_given(
    trace: Trace, function: str, parameter: str, kinds: frozenset[Kind], value: object
) -> None:
    """Raises ``UnsupportedProgramError`` for a tensor, register or None where the instruction takes
    none, and for anything else where it takes nothing but a tensor or a register."""
    if isinstance(value, Tensor):
        is_taken = Access in kinds
    elif isinstance(value, VirtualRegister):
        is_taken = Register in kinds
    elif value is None:
        is_taken = types.NoneType in kinds
    else:
        is_taken = not kinds <= _PLACES
    if not is_taken:
        raise _refused(trace, function, parameter, tuple(kinds), value)


_PLACES = {Access, Register, types.NoneType}
"""What a field takes that takes nothing but tensors and registers."""


def _refused(
    trace: Trace, function: str, parameter: str, kinds: Sequence[Kind], value: object
) -> UnsupportedProgramError:
    """The error for a value that a function does not take."""
    classes = [kind for kind in kinds if isinstance(kind, type)]
    wants_tensor = Access in classes
    hint = next((text for kind, text in _HINTS if wants_tensor and isinstance(value, kind)), "")
    return UnsupportedProgramError(
        f"{trace.line()}: nki.isa.{function} takes no {parameter}={quoted(value)}; pass "
        f"{_wanted(classes)}.{hint}"
    )


_HINTS = (
    (
        np.ndarray,
        " Arrays become tensors as arguments of the kernel, and those that are always the same by "
        "nl.shared_constant.",
    ),
    (NkiInstruction, " Instructions write to their dst, a tile that you declare; pass that."),
)
"""What is given in the place of a tensor, and what to do about it."""


@functools.cache
def _hints(instruction: type[Instruction]) -> dict[str, Kind]:
    return typing.get_type_hints(instruction)


@dataclasses.dataclass(frozen=True)
class _Taker:
    """What a field of an instruction takes: the alternatives of its type, the classes among these,
    and the classes of values that go into it as they are."""

    kinds: tuple[Kind, ...]
    classes: tuple[type, ...]
    accepted: tuple[type, ...]


@functools.cache
def _takers(instruction: Any) -> dict[str, _Taker]:
    takers = {}
    for name, hint in _hints(instruction).items():
        kinds = (hint, *typing.get_args(hint))
        classes = tuple(kind for kind in kinds if isinstance(kind, type))
        only_names = all(issubclass(kind, enum.Enum) for kind in classes)
        takers[name] = _Taker(kinds, classes, classes if only_names else (*classes, int, float))
    return takers


def _converted(trace: Trace, function: str, parameter: str, taker: _Taker, value: object) -> Any:
    if isinstance(value, Tensor):
        return value.access()
    if isinstance(value, VirtualRegister):
        return value.register
    kinds, classes = taker.kinds, taker.classes
    if isinstance(value, list | tuple):
        return tuple(v.access() if isinstance(v, Tensor) else v for v in value)
    if isinstance(value, Operator):
        for kind in _OPERATORS:
            name = _OTHER_NAMES.get((kind, value.name), value.name)
            if kind in kinds and name in kind._value2member_map_:
                return kind(name)
        raise UnsupportedProgramError(
            f"{trace.line()}: nki.isa.{function} has no {parameter}=nl.{value.name}."
        )
    if value is constants.engine.dma:
        raise _refused(trace, function, parameter, kinds, value)
    if isinstance(value, enum.Enum):
        return value if type(value) in kinds else value.value
    if Affine in kinds and isinstance(value, int):
        return affine(value)
    if Immediate in kinds and isinstance(value, int | float):
        return _immediate(trace, function, parameter, value)
    for kind in classes if isinstance(value, str) else ():
        is_option = issubclass(kind, enum.Enum) and kind not in _OPERATORS
        if is_option and value in kind._value2member_map_:
            return kind(value)
    if classes and not isinstance(value, taker.accepted):
        raise _refused(trace, function, parameter, classes, value)
    return value


def _immediate(trace: Trace, function: str, parameter: str, value: float) -> Immediate:
    try:
        return Immediate(float(value))
    except OverflowError:
        raise UnsupportedProgramError(
            f"{trace.line()}: nki.isa.{function} takes no {parameter}={quoted(value)}, which is "
            "beyond float32; pass a smaller number."
        ) from None


def _wanted(classes: Sequence[type]) -> str:
    if any(kind in classes for kind in _OPERATORS):
        return "an operator of nki.language, such as nl.add"
    if Engine in classes:
        return "an engine that has it, such as nisa.engine.vector"
    names = [member.name for kind in classes if issubclass(kind, enum.Enum) for member in kind]
    if names:
        return f"one of {', '.join(names)}"
    known = [text for kind, text in _WANTED if kind in classes]
    return " or ".join(known) if known else f"a value of type {classes[0].__name__}"


_WANTED: Sequence[tuple[type, str]] = (
    (Access, "a tensor"),
    (Immediate, "a number"),
    (Register, "a register, of nisa.register_alloc"),
)
"""Class of a field -> what to pass."""


_OPERATORS: tuple[type[enum.Enum], ...] = (AluOp, Activation, PartitionReduction)
_OTHER_NAMES: Mapping[tuple[type[enum.Enum], str], str] = {(PartitionReduction, "maximum"): "max"}


BUILDERS: Mapping[str, Builder] = {
    **{name: Builder(INSTRUCTIONS[name]) for name in SIGNATURES if name in INSTRUCTIONS},
    "dma_copy": Builder(dma.DmaCopy, prepared.copy, {"oob_mode": "out_of_bounds"}),
    "dma_transpose": Builder(dma.DmaTranspose, prepared.dma_transpose),
    "dma_compute": Builder(dma.DmaCompute, prepared.dma_compute),
    "nc_matmul": Builder(
        tensor_engine.Matmul,
        prepared.matmul,
        {
            "is_stationary_onezero": "stationary_onezero",
            "is_moving_onezero": "moving_onezero",
        },
    ),
    "nc_matmul_mx": Builder(tensor_engine.MatmulMX, prepared.matmul),
    "nc_transpose": Builder(tensor_engine.TensorTranspose, prepared.transpose),
    "tensor_tensor": Builder(vector_engine.TensorTensor, prepared.tensor_tensor),
    "tensor_reduce": Builder(vector_engine.TensorReduce, prepared.reduce),
    "range_select": Builder(
        vector_engine.RangeSelect,
        renamed={"on_true_tile": "on_true", "on_false_value": "on_false"},
    ),
    "local_gather": Builder(
        gpsimd_engine.LocalGather,
        renamed={
            "src_buffer": "src",
            "num_elem_per_idx": "elements_per_index",
            "num_valid_indices": "valid_indices",
        },
    ),
    "nonzero_with_count": Builder(
        gpsimd_engine.NonzeroWithCount, renamed={"padding_val": "padding"}
    ),
    "topk": Builder(gpsimd_engine.TopK, renamed={"val_dst": "values", "idx_dst": "indices"}),
    "nc_stream_shuffle": Builder(vector_engine.StreamShuffle, renamed={"shuffle_mask": "mask"}),
    "iota": Builder(gpsimd_engine.Iota, prepared.pattern),
    "affine_select": Builder(
        gpsimd_engine.AffineSelect,
        prepared.pattern,
        {"on_true_tile": "on_true", "on_false_value": "on_false"},
    ),
    "rand2": Builder(random_numbers.Rand2, renamed={"min": "low", "max": "high"}),
    "rand_set_state": Builder(random_numbers.RandSetState, renamed={"src_seeds": "seeds"}),
    "set_rng_seed": Builder(random_numbers.SetRngSeed, renamed={"src_seeds": "seed"}),
    "core_barrier": Builder(gpsimd_engine.CoreBarrier, prepared.barrier),
    "register_load": Builder(control.RegisterLoad, prepared.register_load),
}
"""Function of `nki.isa` -> how: most become the instruction of their name, field by field."""

ON_ENGINE: Mapping[tuple[str, object], Builder] = {
    ("nc_transpose", constants.engine.vector): Builder(
        vector_engine.VectorTranspose, prepared.transpose
    ),
}
"""Function and engine -> how, where engines have instructions of their own."""

INDEXED: Mapping[tuple[str, str], Builder] = {
    ("dma_copy", "src"): Builder(dma.DmaGather, prepared.gather, {"oob_mode": "out_of_bounds"}),
    ("dma_transpose", "src"): Builder(
        dma.DmaGatherTranspose, prepared.gather_transpose, {"oob_mode": "out_of_bounds"}
    ),
    ("dma_copy", "dst"): Builder(dma.DmaScatter, prepared.scatter, {"oob_mode": "out_of_bounds"}),
    ("dma_compute", "srcs"): Builder(
        dma.DmaGather, prepared.gather_sum, {"oob_mode": "out_of_bounds"}
    ),
    ("dma_compute", "dst"): Builder(
        dma.DmaScatter, prepared.scatter_sum, {"oob_mode": "out_of_bounds"}
    ),
}
"""Function and the parameter that has a `vector_offset` -> how."""
