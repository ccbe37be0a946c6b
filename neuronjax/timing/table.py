"""The cost rule of every instruction, by type."""

from __future__ import annotations

from collections.abc import Mapping

from neuronjax.program.instruction import Instruction
from neuronjax.timing import (
    collective,
    control,
    dma,
    gpsimd_engine,
    random_numbers,
    scalar_engine,
    tensor_engine,
    vector_engine,
)
from neuronjax.timing.cost import Cost, Rule
from neuronjax.timing.platform import Platform

COSTS: Mapping[type[Instruction], Rule] = {
    kind: rule
    for room in (
        tensor_engine, vector_engine, scalar_engine, gpsimd_engine, random_numbers, dma, collective,
        control,
    )
    for kind, rule in room.COSTS.items()
}  # fmt: skip
"""Type -> rule."""


def cost_of(instruction: Instruction, platform: Platform) -> Cost:
    """What one instruction costs on a platform."""
    return COSTS[type(instruction)](instruction, platform)
