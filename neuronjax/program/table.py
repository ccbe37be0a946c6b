"""All instructions by mnemonic. Tables elsewhere (text, rules, emulation, cost) have these keys."""

from __future__ import annotations

from neuronjax.program import (
    collective,
    control,
    dma,
    gpsimd_engine,
    random_numbers,
    scalar_engine,
    tensor_engine,
    vector_engine,
)
from neuronjax.program.instruction import Instruction

_ROOMS = (
    tensor_engine,
    vector_engine,
    scalar_engine,
    gpsimd_engine,
    random_numbers,
    dma,
    collective,
    control,
)

INSTRUCTIONS: dict[str, type[Instruction]] = {
    instruction.mnemonic: instruction for room in _ROOMS for instruction in room.INSTRUCTIONS
}
"""Mnemonic -> instruction."""
