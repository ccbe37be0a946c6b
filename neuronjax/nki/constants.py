"""Enumerations of `nki.isa`, and the operators of `nki.language`, by their public names."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neuronjax.machine.specs import Engine
from neuronjax.nki.refusal import unknown
from neuronjax.program.operators import (
    Activation,
    AluOp,
    ExchangeEngine,
    OutOfBounds,
    PerformanceMode,
    ReduceCommand,
)


class _Names(enum.EnumMeta):
    """The class of enumerations, which says what is near to a member that does not exist."""

    def __getattr__(cls, name: str) -> Any:
        members = vars(cls).get("_member_map_", {})  # Python 3.11 asks here for those that exist
        if name in members:
            return members[name]
        if name.startswith("_"):
            raise AttributeError(name)
        raise unknown(f"nki.isa.{cls.__name__}", name, members)


class MemoryRegion(enum.Enum):
    """Memories as kernels name them; a kernel returns tensors of `shared_hbm`."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"


class engine(enum.Enum, metaclass=_Names):
    """Engines; `unknown` leaves the choice to the compiler. No instruction takes `dma`: who starts
    a transfer is one of the others."""

    unknown = None
    tensor = Engine.TENSOR
    vector = Engine.VECTOR
    scalar = Engine.SCALAR
    gpsimd = Engine.GPSIMD
    sync = Engine.SYNC
    dma = "dma"


class reduce_cmd(enum.Enum, metaclass=_Names):
    """What an instruction does with the accumulator registers of its engine."""

    idle = ReduceCommand.IDLE
    reset = ReduceCommand.RESET
    reduce = ReduceCommand.REDUCE
    reset_reduce = ReduceCommand.RESET_REDUCE
    load_reduce = ReduceCommand.LOAD_REDUCE


class matmul_perf_mode(enum.Enum, metaclass=_Names):
    """Performance modes of `nc_matmul`."""

    none = PerformanceMode.NONE
    double_row = PerformanceMode.DOUBLE_ROW


class oob_mode(enum.Enum, metaclass=_Names):
    """What happens to indices outside of a tensor."""

    error = OutOfBounds.ERROR
    skip = OutOfBounds.SKIP


class dma_engine(enum.Enum, metaclass=_Names):
    """What moves the data of `sendrecv`."""

    dma = ExchangeEngine.DMA
    gpsimd_dma = ExchangeEngine.GPSIMD_DMA


class nc_version(enum.IntEnum, metaclass=_Names):
    """Generations of the NeuronCore; their order is that of their numbers."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


class dge_mode(enum.IntEnum, metaclass=_Names):
    """Who makes the descriptors of a copy; kernels also pass the numbers."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


@dataclass(frozen=True, repr=False)
class Operator:
    """An operator or a function of `nki.language`, as instructions take it."""

    name: str

    def __repr__(self) -> str:
        return f"nl.{self.name}"


ENUMS: Mapping[str, type[enum.Enum]] = {
    kind.__name__: kind
    for kind in (engine, reduce_cmd, matmul_perf_mode, oob_mode, dge_mode, dma_engine)
}
OPERATORS: Mapping[str, Operator] = {
    name: Operator(name)
    for name in (*(member.value for kind in (AluOp, Activation) for member in kind), "average")
}
"""Name in `nki.language` -> the operator."""
