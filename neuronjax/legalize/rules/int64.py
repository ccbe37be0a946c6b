"""64-bit integers, which are computed in 32 bits unless ``--native-int64`` is set.

Most programs use them for counts, indices or labels, for which 32 bits are enough. The rule matches
arithmetic with larger results, if these affect the results of the program.
"""

from __future__ import annotations

from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.demand import Demand, is_exact_in_low_bits
from neuronjax.legalize.emit import element_type
from neuronjax.legalize.fp64_integers import is_wide
from neuronjax.legalize.integer_ranges import limits
from neuronjax.legalize.op_sets import INTEGER_ARITHMETIC, INTEGERS_64, in_closed_region
from neuronjax.legalize.rules.rule import Rule, Severity, Site, stablehlo

_SEEDING = ("random_seed", "threefry_seed")
"""Functions by which JAX splits seeds into two words; non-negative 32-bit seeds are unaffected."""
_COMPUTED = INTEGER_ARITHMETIC | stablehlo("constant", "convert")


def _exceeds(site: Site) -> str | None:
    """A description of the result that needs more than 32 bits, if there is one."""
    op = site.op
    if op.name == "stablehlo.convert" and is_wide(op.operands[0]):
        return None
    for result in op.results:
        if not is_wide(result):
            continue
        values = site.program.integer_ranges.of(result, site.path)
        short = limits(INTEGERS_64[element_type(result)])
        if short is not None and not values.within(short):
            if op.name == "stablehlo.constant":
                return f"the constant is {max(values, key=abs)}"
            return f"a result of {op.name} may need {min(values.bits, 64)} bits"
    return None


def _cuts_a_seed(op: ir.Operation) -> bool:
    makers = [value.owner for value in op.operands if not isinstance(value.owner, ir.Block)]
    places = [str(source.location) for source in (op, *makers)]
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
