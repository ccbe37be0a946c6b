"""Random numbers of the Vector and GpSimd engines, which hold the generators' state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from neuronjax.machine.specs import Engine
from neuronjax.program.instruction import READ, WRITE, Instruction
from neuronjax.program.operand import Access, Scalar

_VECTOR = (Engine.VECTOR,)
_GPSIMD_VECTOR = (Engine.GPSIMD, Engine.VECTOR)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rng(Instruction):
    """dst = random bits: the lowest of 32 for each element."""

    mnemonic: ClassVar[str] = "rng"
    engines: ClassVar[tuple[Engine, ...]] = _GPSIMD_VECTOR
    page: ClassVar[str] = "NKI ISA rng"

    dst: Access = field(metadata=WRITE)
    engine: Engine = Engine.VECTOR


@dataclass(frozen=True, kw_only=True, slots=True)
class Rand2(Instruction):
    """dst = uniform in [low, high]."""

    mnemonic: ClassVar[str] = "rand2"
    engines: ClassVar[tuple[Engine, ...]] = _VECTOR
    page: ClassVar[str] = "NKI ISA rand2"

    dst: Access = field(metadata=WRITE)
    low: Scalar = field(metadata=READ)
    high: Scalar = field(metadata=READ)


@dataclass(frozen=True, kw_only=True, slots=True)
class RandSetState(Instruction):
    """The engine's state = seeds: 6 words per lane on GpSimd, 24 on Vector."""

    mnemonic: ClassVar[str] = "rand_set_state"
    engines: ClassVar[tuple[Engine, ...]] = _GPSIMD_VECTOR
    page: ClassVar[str] = "NKI ISA rand_set_state"

    seeds: Access = field(metadata=READ)
    engine: Engine = Engine.GPSIMD


@dataclass(frozen=True, kw_only=True, slots=True)
class RandGetState(Instruction):
    """dst = the engine's state: 6 words per lane on GpSimd, 24 on Vector."""

    mnemonic: ClassVar[str] = "rand_get_state"
    engines: ClassVar[tuple[Engine, ...]] = _GPSIMD_VECTOR
    page: ClassVar[str] = "NKI ISA rand_get_state"

    dst: Access = field(metadata=WRITE)
    engine: Engine = Engine.GPSIMD


@dataclass(frozen=True, kw_only=True, slots=True)
class SetRngSeed(Instruction):
    """The Vector engine's state from one 32-bit seed."""

    mnemonic: ClassVar[str] = "set_rng_seed"
    engines: ClassVar[tuple[Engine, ...]] = _VECTOR
    page: ClassVar[str] = "NKI ISA set_rng_seed"

    seed: Access = field(metadata=READ)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dropout(Instruction):
    """dst = data, an element replaced by zero with probability `prob`."""

    mnemonic: ClassVar[str] = "dropout"
    engines: ClassVar[tuple[Engine, ...]] = _VECTOR
    page: ClassVar[str] = "NKI ISA dropout"

    dst: Access = field(metadata=WRITE)
    data: Access = field(metadata=READ)
    prob: Scalar = field(metadata=READ)


INSTRUCTIONS: tuple[type[Instruction], ...] = (
    Rng, Rand2, RandSetState, RandGetState, SetRngSeed, Dropout,
)  # fmt: skip
