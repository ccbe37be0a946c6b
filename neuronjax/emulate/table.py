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

_ROOMS = (
    tensor_engine.RULES,
    vector_engine.RULES,
    vector_selection.RULES,
    scalar_engine.RULES,
    gpsimd_engine.RULES,
    random_numbers.RULES,
    dma.RULES,
    collective.RULES,
    control.RULES,
)

RULES: Rules = {kind: rule for room in _ROOMS for kind, rule in room.items()}
"""Instruction -> its rule."""
