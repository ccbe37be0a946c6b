"""Random numbers of the Vector and GpSimd engines, which hold the generators' state."""

from __future__ import annotations

from dataclasses import dataclass, field

from neuronjax.machine.specs import Engine
from neuronjax.program.instruction import READ, WRITE, Instruction, instruction
from neuronjax.program.operand import Access, Scalar

_VECTOR = (Engine.VECTOR,)
_GPSIMD_VECTOR = (Engine.GPSIMD, Engine.VECTOR)


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomNumbers(Instruction):
    """An instruction that reads or changes the state of an engine's generator."""


@instruction("rng", _GPSIMD_VECTOR)
class Rng(RandomNumbers):
    """dst = random bits: the lowest of 32 for each element."""

    dst: Access = field(metadata=WRITE)
    engine: Engine = Engine.VECTOR


@instruction("rand2", _VECTOR)
class Rand2(RandomNumbers):
    """dst = uniform in [low, high]."""

    dst: Access = field(metadata=WRITE)
    low: Scalar = field(metadata=READ)
    high: Scalar = field(metadata=READ)


@instruction("rand_set_state", _GPSIMD_VECTOR)
class RandSetState(RandomNumbers):
    """The engine's state = seeds: 6 words per lane on GpSimd, 24 on Vector."""

    seeds: Access = field(metadata=READ)
    engine: Engine = Engine.GPSIMD


@instruction("rand_get_state", _GPSIMD_VECTOR)
class RandGetState(RandomNumbers):
    """dst = the engine's state: 6 words per lane on GpSimd, 24 on Vector."""

    dst: Access = field(metadata=WRITE)
    engine: Engine = Engine.GPSIMD


@instruction("set_rng_seed", _VECTOR)
class SetRngSeed(RandomNumbers):
    """The Vector engine's state from one 32-bit seed."""

    seed: Access = field(metadata=READ)


@instruction("dropout", _VECTOR)
class Dropout(RandomNumbers):
    """dst = data, an element replaced by zero with probability `prob`."""

    dst: Access = field(metadata=WRITE)
    data: Access = field(metadata=READ)
    prob: Scalar = field(metadata=READ)
