"""Control flow: the device supports loops with a known number of steps, and no branches."""

from __future__ import annotations

from neuronjax.hlo.calls import Path, terminator
from neuronjax.hlo.constants import direction
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.rules.operators import KNOWN_ISSUES, MESSAGE
from neuronjax.legalize.rules.rule import Rule, Site, stablehlo

_COUNTING = frozenset({"stablehlo.add", "stablehlo.subtract"})
_REPLICA = frozenset({"stablehlo.replica_id", "stablehlo.partition_id"})


def _branches(site: Site) -> str | None:
    return None if _chooses_replica(site) else ""


def _chooses_replica(site: Site) -> bool:
    """Whether an ``if`` is the partitioner's, for work on a single replica."""
    if site.op.name != "stablehlo.if":
        return False
    predicate, path = site.origin(site.op.operands[0])
    if isinstance(predicate, ir.BlockArgument) or predicate.owner.name != "stablehlo.compare":
        return False
    return any(_maker(site, operand, path) in _REPLICA for operand in predicate.owner.operands)


def _maker(site: Site, value: ir.Value, path: Path) -> str:
    value, _ = _unconverted(site, value, path)
    return "" if isinstance(value, ir.BlockArgument) else value.owner.name


def _unconverted(site: Site, value: ir.Value, path: Path) -> tuple[ir.Value, Path]:
    """The op that makes a value, before conversions of its type."""
    while True:
        value, path = site.program.graph.origin(value, path)
        if isinstance(value, ir.BlockArgument) or value.owner.name != "stablehlo.convert":
            return value, path
        value = value.owner.operands[0]


def _dynamic_loop(site: Site) -> str | None:
    condition, path = site.origin(terminator(site.op).operands[0])
    if isinstance(condition, ir.BlockArgument) or condition.owner.name != "stablehlo.compare":
        return "the condition is not a single comparison of a counter with a constant"
    if direction(condition.owner) == "EQ":
        return "the loop runs as long as two values are equal"
    left, right = condition.owner.operands
    reasons = [
        _not_counting(site, counter, bound, path)
        for counter, bound in ((left, right), (right, left))
    ]
    return None if None in reasons else reasons[0]


def _not_counting(site: Site, counter: ir.Value, bound: ir.Value, path: Path) -> str | None:
    """Why a loop does not count ``counter`` from a constant to ``bound`` by a constant."""
    counter, _ = _unconverted(site, counter, path)
    block = site.op.regions[0].blocks[0]
    if not isinstance(counter, ir.BlockArgument) or counter.owner != block:
        return "the condition does not compare a loop counter"
    if site.program.constants.scalar(bound, path) is None:
        return "the number of steps is computed by the program"
    if site.scalar(site.op.operands[counter.arg_number]) is None:
        return "the counter starts at a computed value"
    return _uneven_step(site, counter.arg_number)


def _uneven_step(site: Site, number: int) -> str | None:
    stepped, path = _unconverted(site, terminator(site.op, 1).operands[number], site.path)
    if isinstance(stepped, ir.BlockArgument) or stepped.owner.name not in _COUNTING:
        return "the counter does not advance by a constant"
    before, step = stepped.owner.operands
    counter = site.op.regions[1].blocks[0].arguments[number]
    for first, second in ((before, step), (step, before)):
        known = site.program.constants.scalar(second, path)
        if known and _unconverted(site, first, path)[0] == counter:
            return None
    return "the counter does not advance by a constant"


RULES = (
    Rule(
        code="EVRF001",
        what="lax.cond and lax.switch",
        ops=stablehlo("case", "if"),
        check=_branches,
        message=MESSAGE,
        remedy="Compute both branches and choose with jnp.where (jax.lax.select).",
        source=KNOWN_ISSUES,
    ),
    Rule(
        code="EVRF001",
        what="loops with an unknown number of steps",
        ops=stablehlo("while"),
        check=_dynamic_loop,
        message="Dynamic loops are not supported",
        remedy=(
            "Use jax.lax.scan or fori_loop with constant bounds, and jnp.where for steps that "
            "should have no effect."
        ),
        source=KNOWN_ISSUES,
    ),
)
