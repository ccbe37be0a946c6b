"""64-bit integers, which are computed in 32 bits unless ``--native-int64`` says otherwise.

Most programs that have them count, index or label, and 32 bits are enough for that. The rule is
about arithmetic whose results may be larger, where that matters for what the program returns.
"""

from __future__ import annotations

from typing import Any

from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.demand import Demand, is_exact_in_low_bits
from neuronjax.legalize.emit import element_type
from neuronjax.legalize.fp64_integers import is_wide
from neuronjax.legalize.integer_ranges import limits
from neuronjax.legalize.op_sets import INTEGER_ARITHMETIC, INTEGERS_64, in_closed_region
from neuronjax.legalize.rules.rule import Rule, Severity, Site, stablehlo

_SEEDING = ("random_seed", "threefry_seed")
"""What JAX cuts seeds in two words with. Seeds of 32 bits, not negative, stay the same."""
_COMPUTED = INTEGER_ARITHMETIC | stablehlo("constant", "convert")


def _exceeds(site: Site) -> str | None:
    """Whether a result needs more than 32 bits; in how many words."""
    op = site.op
    if op.name == "stablehlo.convert" and is_wide(op.operands[0]):
        return None
    for result in op.results:
        if not is_wide(result):
            continue
        found = site.program.integer_ranges.of(result, site.path)
        short = limits(INTEGERS_64[element_type(result)])
        if short is not None and not found.within(short):
            if op.name == "stablehlo.constant":
                return f"the constant is {max(found, key=abs)}"
            return f"a result of {op.name} may need {min(found.bits, 64)} bits"
    return None


def _cuts_a_seed(op: Any) -> bool:
    makers = [value.owner for value in op.operands if not isinstance(value.owner, ir.Block)]
    places = [str(each.location) for each in (op, *makers)]
    return any(name in place for name in _SEEDING for place in places)


def _differs(site: Site) -> str | None:
    if site.policy.native_int64 or in_closed_region(site.op) or _cuts_a_seed(site.op):
        return None
    detail = _exceeds(site)
    if detail is None or site.program.fp64_integers.has(site.op):
        return None
    demand = site.program.demands.of(site.op)
    enough = demand is Demand.LOW and is_exact_in_low_bits(site.op)
    return None if enough or demand is Demand.NONE else detail


RULES = (
    Rule(
        code="JAX_INT64",
        what="64-bit integers in 32 bits",
        ops=_COMPUTED,
        elements=frozenset(INTEGERS_64),
        check=_differs,
        severity=Severity.WARNING,
        message="64-bit integers are computed in 32 bits and lose values beyond 2^31",
        remedy="Use int32, or NEURON_CC_FLAGS=--native-int64=enabled on Trn2 (SDK 2.32).",
        source="neuronx-cc command line reference, --native-int64",
    ),
)
