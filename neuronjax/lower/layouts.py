"""The order in which results of products lie in memory: as those who read them will walk them."""

from __future__ import annotations

from neuronjax.hlo.graph import Graph, Op, Value


def orders(graph: Graph) -> dict[Value, tuple[int, ...]]:
    """Value -> the permutation of its dimensions in which all of its readers see it."""
    found: dict[Value, tuple[int, ...] | None] = {}
    for op in graph.operations:
        for value in op.operands:
            order = _order(op)
            found[value] = order if found.get(value, order) == order else None
        for region in op.regions:
            found.update(dict.fromkeys(region.captured()))
    found.update(dict.fromkeys(graph.results))
    return {value: order for value, order in found.items() if order is not None}


def _order(op: Op) -> tuple[int, ...] | None:
    return tuple(op.attributes["permutation"]) if op.name == "transpose" else None
