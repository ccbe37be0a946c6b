"""Whether a workload suits a machine, and what limits it there.

The verdict follows from the program itself: what the Neuron compiler would say of it, the memory of
a core, the operations that no engine has, and its time against what its arithmetic and its bytes
need at least.
"""

from __future__ import annotations

import enum
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from neuronjax.display import Displayed, Table, digits, duration_within, rounded
from neuronjax.errors import UnsupportedProgramError
from neuronjax.machine.machine import Machine
from neuronjax.planning import table
from neuronjax.planning.depth import DEPTHS
from neuronjax.planning.estimate import setting_of
from neuronjax.planning.limits import Limit, limits_of
from neuronjax.planning.record import Estimate, Price
from neuronjax.planning.runners import Runner, in_turn
from neuronjax.planning.sweep import DIED, Choice, Estimating, Point, cost_unit, estimated, pareto
from neuronjax.planning.tracing import abstract_mesh
from neuronjax.planning.workload import Factory

_SIZES = 4
"""Sizes of the axis `model` that are tried, from the smallest whose cores hold the arguments."""


class Verdict(enum.StrEnum):
    """A judgement in the words of the Neuron documentation's guide to architectures."""

    WELL = "fits well"
    LIMITED = "fits with limits"
    NOT = "does not fit"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, repr=False)
class Fit(Displayed):
    """A workload on a machine. `points` are the ways of splitting it that were tried."""

    workload: str
    target: str
    verdict: Verdict
    limits: tuple[Limit, ...]
    points: tuple[Point, ...] = ()

    @property
    def front(self) -> tuple[Point, ...]:
        """The points that no other beats in both time and cost, fastest first."""
        return tuple(pareto(point for point in self.points if point.usable))

    @property
    def cheapest(self) -> Point | None:
        """The point to take, unless time matters more than cost. None: nothing runs."""
        return min(self.front, key=lambda point: point.cost, default=None)

    def parts(self) -> Iterator[str | Table]:
        return _parts([self])

    def as_dict(self) -> dict[str, Any]:
        """All fields; each point with its estimate, or with why there is none."""
        return {
            "workload": self.workload,
            "target": self.target,
            "verdict": self.verdict.value,
            "limits": [vars(limit) for limit in self.limits],
            "points": [
                {
                    "mesh": point.mesh,
                    "error": point.error or None,
                    "pareto": point in self.front,
                    "estimate": point.estimate.as_dict() if point.estimate else None,
                }
                for point in self.points
            ],
        }


def fit(
    factory: Factory,
    target: str,
    *,
    meshes: Sequence[str] = (),
    batch: int | None = None,
    dtype: str | None = None,
    price: Price | None = None,
    depths: tuple[int, int] = DEPTHS,
    lnc: int | None = None,
    pad: bool = False,
    runner: Runner[Choice, Point] = in_turn,
) -> Fit:
    """The verdict on what a factory makes, on a machine.

    Args:
      factory: makes the workload. Where it takes a mesh, the cores are split between the axes
        `data` and `model`.
      meshes: what to try instead.
      batch: rows for each part of `data`, where the factory takes a mesh.
      price: of an instance; what AWS asks, unless it is given. Without any, points are
        compared by the time of instances.
      pad: whether the factory is to round sizes up to what a mesh divides.
      runner: where the points are estimated.

    Raises:
      UnknownTargetError, LogicalCoreError, ConfigurationError: no such machine or workload.
    """
    try:
        machine = setting_of(target, lnc).machine
    except UnsupportedProgramError as error:
        return Fit(
            workload=factory.name,
            target=target,
            verdict=Verdict.UNKNOWN,
            limits=(Limit(str(error), ""),),
        )
    estimating = Estimating(
        factory=factory,
        lnc=lnc,
        prices={} if price is None else {machine.target: (price,)},
        depths=depths,
        with_findings=True,
        pad=pad,
    )
    splits = _splits(factory, machine, meshes, batch)
    choices = [(target, mesh, rows, dtype) for mesh, rows in splits]
    points = estimated(estimating, choices, runner)
    limits = tuple(limits_of(points))
    verdict = Verdict.LIMITED if limits else Verdict.WELL
    if any(limit.forbids for limit in limits):
        died = any(point.error == DIED for point in points)
        verdict = Verdict.UNKNOWN if died else Verdict.NOT
    return Fit(
        workload=factory.name,
        target=machine.target,
        verdict=verdict,
        limits=limits,
        points=tuple(points),
    )


def _splits(
    factory: Factory, machine: Machine, meshes: Sequence[str], batch: int | None
) -> Iterator[tuple[str | None, int | None]]:
    """The meshes to try, and the batch of each."""
    if not factory.takes("mesh"):
        yield from ((mesh, batch) for mesh in meshes or (None,))
        return
    if meshes:
        for mesh in meshes:
            rows = abstract_mesh(mesh).shape.get("data", 1)
            yield mesh, None if batch is None else batch * rows
        return
    cores = machine.core_count
    sizes = [size for size in _powers_of_two(cores) if cores % size == 0]
    needed = factory.build(mesh=abstract_mesh("data=1,model=1"), batch=batch)[0].argument_bytes
    holding = [size for size in sizes if needed <= size * machine.core_hbm_bytes] or sizes[-1:]
    for size in holding[:_SIZES]:
        rows = cores // size
        yield f"data={rows},model={size}", (batch or 1) * rows


def _powers_of_two(most: int) -> Iterable[int]:
    return itertools.takewhile(lambda size: size <= most, (1 << n for n in itertools.count()))


_HEADINGS = (
    "", "workload", "target", "verdict", "mesh", "step", "80 % range", "rate", "HBM", "cost",
)  # fmt: skip


def text(fits: Sequence[Fit]) -> str:
    """A table of verdicts, with the points worth taking, and what limits each."""
    return "\n\n".join(map(str, _parts(fits)))


def _parts(fits: Sequence[Fit]) -> Iterator[str | Table]:
    yield Table([row for fit in fits for row in _rows(fit)], head=_HEADINGS)
    if any(fit.front for fit in fits):
        yield "*: the cheapest. Rates and costs are those of whole instances."
        best = [point.estimate for fit in fits for point in fit.front if point.estimate]
        yield table.bases(best)
        yield from table.assumptions(best)
    places: dict[tuple[Limit, ...], list[str]] = {}
    for fit in fits:
        places.setdefault(fit.limits, []).append(f"{fit.workload} on {fit.target} {fit.verdict}")
    for limits, names in places.items():
        if limits:
            yield "\n".join([*names, *(f"  {limit}" for limit in limits)])


def _rows(fit: Fit) -> Iterator[tuple[str, ...]]:
    """A line for each point worth taking; one without numbers if there is none."""
    if not fit.front:
        yield ("", fit.workload, fit.target, fit.verdict.value)
    for point in fit.front:
        estimate = point.estimate
        assert estimate is not None
        shown = digits(*estimate.range_ns) + 1
        yield (
            "*" if point is fit.cheapest else "",
            fit.workload,
            fit.target,
            fit.verdict.value,
            point.mesh or "-",
            *duration_within(estimate.step_ns, *estimate.range_ns),
            _rate(estimate, shown),
            table.occupancy(estimate),
            f"{rounded(point.cost, shown)} {cost_unit([estimate])}",
        )


def _rate(estimate: Estimate, shown: int) -> str:
    if estimate.tokens_per_second is not None:
        return f"{rounded(estimate.tokens_per_second, shown)} tokens/s"
    if estimate.samples_per_second is not None:
        return f"{rounded(estimate.samples_per_second, shown)} samples/s"
    return "-"


def to_json(fits: Iterable[Fit]) -> str:
    """A list of objects, one for each workload and target."""
    return json.dumps([fit.as_dict() for fit in fits], indent=2)
