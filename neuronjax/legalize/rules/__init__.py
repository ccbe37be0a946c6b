"""The limitations of the real compiler and runtime: one row per rule, by topic.

Codes are those of the Neuron compiler's error pages. Operators that only JAX NeuronX's known issues
mention have the code of unsupported operators; limitations that do not prevent compilation have
their own names (``JAX_…``, ``RT_…``). ``elsewhere.CODES`` has the public codes that are not rules.
"""

from __future__ import annotations

from neuronjax.legalize.rules import (
    collectives,
    control_flow,
    custom_calls,
    indices,
    int64,
    integers,
    microscaling,
    operators,
    random,
    types,
    windows,
)
from neuronjax.legalize.rules.rule import Rule

RULES: tuple[Rule, ...] = (
    *operators.RULES,
    *control_flow.RULES,
    *custom_calls.RULES,
    *types.RULES,
    *windows.RULES,
    *random.RULES,
    *integers.RULES,
    *int64.RULES,
    *indices.RULES,
    *collectives.RULES,
    *microscaling.RULES,
)
