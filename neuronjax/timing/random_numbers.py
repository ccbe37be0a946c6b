"""Cost of random numbers: N cycles on Vector, four values per cycle from version 4.

Sources: NKI ISA, edition 2.26 (`dropout`); nki/guides/architecture/trainium3_arch.rst (`rand2`).
The generator of earlier cores makes one value per lane and cycle: assumed, nothing is published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neuronjax.machine.specs import Engine
from neuronjax.program import random_numbers as program
from neuronjax.program.instruction import Instruction
from neuronjax.timing import gpsimd_engine
from neuronjax.timing.cost import Cost, Rule, streaming
from neuronjax.timing.platform import Platform
from neuronjax.timing.walks import longest


def _values(instruction: Any, platform: Platform) -> Cost:
    elements = longest(platform, *instruction.accesses())
    if getattr(instruction, "engine", Engine.VECTOR) is Engine.GPSIMD:
        return gpsimd_engine.instruction_cost(platform, elements)
    cycles = elements / (4 if platform.core.version >= 4 else 1)
    return _vector(platform, cycles)


def _dropout(instruction: program.Dropout, platform: Platform) -> Cost:
    return _vector(platform, longest(platform, instruction.dst, instruction.data))


def _vector(platform: Platform, cycles: float) -> Cost:
    return streaming(platform, Engine.VECTOR, cycles)


COSTS: Mapping[type[Instruction], Rule] = {
    program.Rng: _values,
    program.Rand2: _values,
    program.RandSetState: _values,
    program.RandGetState: _values,
    program.SetRngSeed: _values,
    program.Dropout: _dropout,
}
