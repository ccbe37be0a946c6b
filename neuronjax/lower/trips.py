"""Loops with a constant trip count, and the stacks that they write completely."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.operations import root_of
from neuronjax.program.affine import Affine


@dataclass(frozen=True)
class Trips:
    """The attribute `counted` of a loop: its variable in the program, and its trip count."""

    variable: str
    count: int


def is_made_whole(op: Op, index: int) -> bool:
    """Whether a counted loop writes all of a value that it carries, and reads none of it."""
    _, body = op.regions
    parameter, update = body.parameters[index], root_of(body.results[index]).producer
    if update is None or update.name != "counted_update_slice":
        return False
    if update.operands[0] is not parameter or uses_of(body)[parameter] > 1:
        return False
    trips: Trips = op.attributes["counted"]
    starts = update.attributes["start_indices"]
    rows = zip(starts, parameter.shape, update.operands[1].shape, strict=True)
    partial = [row for row in rows if row[1] != row[2]]
    return len(partial) < 2 and all(
        _covers(start, trips, size, length) for start, size, length in partial
    )


def _covers(start: Affine, trips: Trips, size: int, length: int) -> bool:
    """Whether parts of a length that begin at `start` leave no gap in a dimension."""
    if start.variables != (trips.variable,):
        return False
    ((_, step),) = start.terms
    least, greatest = start.interval({trips.variable: trips.count})
    return abs(step) <= length and least == 0 and greatest + length == size


def uses_of(graph: Graph) -> Counter[Value]:
    """How often values are operands, of regions too, or results."""
    uses = Counter(value for op in graph.operations for value in op.operands)
    uses.update(v for op in graph.operations for region in op.regions for v in region.captured())
    uses.update(graph.results)
    return uses
