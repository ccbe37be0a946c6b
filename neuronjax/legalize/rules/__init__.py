"""What the real compiler would refuse: one row per rule, by topic.

Codes are those of the Neuron compiler's error pages. Operators that the JAX NeuronX known issues
alone name have the code for unsupported operators; what neither refuses to compile has a name of
its own (``JAX_…``, ``RT_…``). ``elsewhere.CODES`` has the public codes that are no rules.
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
