"""The rules of all instructions, which turn them into functions or exchanges."""

from __future__ import annotations

from neuronjax.emulate import (
    collective,
    control,
    dma,
    gpsimd_engine,
    random_numbers,
    scalar_engine,
    tensor_engine,
    vector_engine,
    vector_selection,
)
from neuronjax.emulate.rule import Rules

RULES: Rules = {
    kind: rule
    for room in (
        tensor_engine, vector_engine, vector_selection, scalar_engine, gpsimd_engine,
        random_numbers, dma, collective, control,
    )
    for kind, rule in room.RULES.items()
}  # fmt: skip
"""Instruction -> its rule."""
