"""Enumerations of `nki.isa`, and the operators of `nki.language`, by their public names."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from neuronjax.machine.specs import Engine
from neuronjax.program.operators import Activation, AluOp, PerformanceMode, ReduceCommand


class engine(enum.Enum):
    """Engines; `unknown` leaves the choice to the compiler."""

    unknown = None
    tensor = Engine.TENSOR
    vector = Engine.VECTOR
    scalar = Engine.SCALAR
    gpsimd = Engine.GPSIMD


class reduce_cmd(enum.Enum):
    """What an instruction does with the accumulator registers of its engine."""

    idle = ReduceCommand.IDLE
    reset = ReduceCommand.RESET
    reduce = ReduceCommand.REDUCE
    reset_reduce = ReduceCommand.RESET_REDUCE
    load_reduce = ReduceCommand.LOAD_REDUCE


class matmul_perf_mode(enum.Enum):
    """Performance modes of `nc_matmul`."""

    none = PerformanceMode.NONE
    double_row = PerformanceMode.DOUBLE_ROW


class oob_mode(enum.Enum):
    """What happens to indices outside of a tensor."""

    error = "error"
    skip = "skip"


class dge_mode(enum.Enum):
    """Who makes the descriptors of a copy."""

    unknown = "unknown"
    swdge = "swdge"
    hwdge = "hwdge"
    none = "none"


@dataclass(frozen=True)
class Operator:
    """An operator or a function of `nki.language`, as instructions take it."""

    name: str


ENUMS: Mapping[str, type[enum.Enum]] = {
    kind.__name__: kind for kind in (engine, reduce_cmd, matmul_perf_mode, oob_mode, dge_mode)
}
OPERATORS: Mapping[str, Operator] = {
    member.value: Operator(member.value) for kind in (AluOp, Activation) for member in kind
}
"""Name in `nki.language` -> the operator."""
