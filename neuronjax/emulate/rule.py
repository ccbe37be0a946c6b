"""The types of rules, which turn instructions into functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from neuronjax.emulate.exchange import Exchange
from neuronjax.emulate.unit import Run
from neuronjax.program.instruction import Instruction

Rule = Callable[..., Run | Exchange]
"""(instruction, unit) -> a function that executes it, or its side of an exchange."""
Rules = Mapping[type[Instruction], Rule]
