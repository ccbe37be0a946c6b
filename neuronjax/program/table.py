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

INSTRUCTIONS: dict[str, type[Instruction]] = {
    kind.mnemonic: kind
    for room in (
        tensor_engine, vector_engine, scalar_engine, gpsimd_engine, random_numbers, dma, collective,
        control,
    )
    for kind in vars(room).values()
    if isinstance(kind, type) and issubclass(kind, Instruction) and "mnemonic" in vars(kind)
}  # fmt: skip
"""Mnemonic -> instruction."""
