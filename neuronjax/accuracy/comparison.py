"""The result of a comparison: rows of ops as records, as a table for people, and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from neuronjax.accuracy.measure import NONE, Error
from neuronjax.display import Displayed, Table, without_infinities

_SHOWN = 20


@dataclass(frozen=True)
class Row:
    """A float result of an op over all its runs, in all iterations of loops and on all cores.

    Errors are the greatest of all runs.
    """

    op: str
    source: str
    """``file:line`` in the user's code."""
    type: str
    """Element type and shape of the result on one core, such as ``bf16[2,128]``."""
    visits: int
    """How often the op ran, over all cores."""
    local: Error
    """Error against the same op in the reference's type, on the operands of the chip's op."""
    accumulated: Error
    """Error against the run that is entirely in the reference's type."""
    core: int
    """The core on which ``local`` was greatest."""
    iterations: tuple[int, ...]
    """The iterations in which it was greatest, of the loops around the op, outermost first."""


@dataclass(frozen=True)
class Output:
    """A float result of the program; its error is ``accumulated``, the greatest of any core."""

    index: int
    type: str
    accumulated: Error


@dataclass(frozen=True)
class Decision:
    """A loop or branch that would have been decided differently in the reference run."""

    op: str
    source: str
    visits: int
    """How often the decisions differed."""


@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """The result of ``neuronjax.compare``."""

    chip: str
    reference: str
    cores: int
    rows: tuple[Row, ...]
    """The compared operations in program order."""
    outputs: tuple[Output, ...]
    first_divergence: Row | None
    """The first op, in the order of execution, whose accumulated error exceeded the threshold."""
    decisions: tuple[Decision, ...]

    @property
    def by_cost(self) -> list[Row]:
        """The rows, greatest local error first."""
        return sorted(self.rows, key=lambda row: _cost(row.local), reverse=True)

    @property
    def worst(self) -> Row | None:
        """The op with the greatest local error; ``None`` if no op rounded anything."""
        rows = self.by_cost
        return rows[0] if rows and rows[0].local != NONE else None

    @property
    def lines(self) -> list[tuple[str, float]]:
        """Source lines and their cost, costliest first: √Σ of their ops' squared local errors."""
        costs: dict[str, float] = {}
        for row in self.rows:
            costs[row.source] = math.hypot(costs.get(row.source, 0.0), row.local.relative)
        return sorted(costs.items(), key=lambda item: item[1], reverse=True)

    def to_json(self) -> str:
        """Everything as JSON text; infinite numbers are the string ``"inf"``."""
        return json.dumps(without_infinities(asdict(self), "inf"), allow_nan=False)

    def parts(self) -> Iterator[str | Table]:
        yield "\n".join(self._headlines())
        rows = [tuple(map(str, _cells(row))) for row in self.by_cost[:_SHOWN]]
        local, accumulated = ([f"{kind} {name}" for name in _ERRORS] for kind in _KINDS)
        head = (*local, *accumulated, *_OP)
        yield Table(rows, head=head, title="Costliest ops", note="\n".join(self._rest()))

    def __str__(self) -> str:
        return "\n".join((*self._headlines(), "", *_table(self.by_cost[:_SHOWN]), *self._rest()))

    def _headlines(self) -> list[str]:
        worst, first = self.worst, self.first_divergence
        lines = [
            f"{len(self.rows)} ops on {self.chip}, {self.cores} core{'s' * (self.cores != 1)}, "
            f"against {self.reference}"
        ]
        if worst is None:
            return [*lines, "no op rounded anything"]
        source, cost = self.lines[0]
        lines.append(f"worst op          {_named(worst)}, local error {worst.local.relative:.1e}")
        lines.append(f"worst line        {source}, cost {cost:.1e}")
        if first is not None:
            lines.append(f"first divergence  {_named(first)}, {first.accumulated.ulps:.1f} ULP")
        lines += [
            f"result {output.index:<4}       {output.type}, accumulated error "
            f"{output.accumulated.relative:.1e}"
            for output in sorted(
                self.outputs, key=lambda output: output.accumulated.relative, reverse=True
            )[:4]
        ]
        lines += [
            f"went another way  {decision.op} at {decision.source}, {decision.visits} times"
            for decision in self.decisions
        ]
        return lines

    def _rest(self) -> list[str]:
        more = len(self.rows) - _SHOWN
        return [f"and {more} more, see .rows"] if more > 0 else []


def _cost(error: Error) -> tuple[float, float]:
    return error.relative, error.ulps


def _named(row: Row) -> str:
    iterations = f", iteration {','.join(map(str, row.iterations))}" if row.iterations else ""
    return f"{row.op} {row.type} at {row.source}{iterations}"


_LINE = "{:>9} {:>9} {:>9} | {:>9} {:>9} {:>9} | {:>6}  {:<18} {:<20} {}"


_KINDS = ("local", "accumulated")
_ERRORS = ("relative", "max rel.", "ULPs")
_OP = ("visits", "op", "type", "source")


def _table(rows: Sequence[Row]) -> list[str]:
    head = (*_ERRORS, *_ERRORS, *_OP)
    groups = "{:^29} | {:^29} |".format(*(f"{kind} error" for kind in _KINDS))
    return [groups, *(_LINE.format(*row).rstrip() for row in (head, *map(_cells, rows)))]


def _cells(row: Row) -> tuple[object, ...]:
    return (
        *_numbers(row.local), *_numbers(row.accumulated),
        row.visits, row.op, row.type, row.source,
    )  # fmt: skip


def _numbers(error: Error) -> tuple[str, str, str]:
    ulps = f"{error.ulps:.2f}" if error.ulps < 1e5 else f"{error.ulps:.1e}"
    return f"{error.relative:.1e}", f"{error.max_relative:.1e}", ulps
