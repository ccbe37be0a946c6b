"""A workload on every combination of targets, meshes, batches and dtypes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from neuronjax.display import Displayed, Table, digits, duration_within, rounded
from neuronjax.errors import NeuronError
from neuronjax.planning import table
from neuronjax.planning.depth import DEPTHS
from neuronjax.planning.estimate import of_factory, setting_of
from neuronjax.planning.prices import Prices, price_for
from neuronjax.planning.record import Estimate
from neuronjax.planning.runners import Runner, in_turn
from neuronjax.planning.tracing import abstract_mesh
from neuronjax.planning.what_if import Given
from neuronjax.planning.workload import Factory

MILLION = 1_000_000

Choice = tuple[str, str | None, int | None, str | None]
"""Target, mesh, batch and dtype of a point."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What is combined; ``None`` leaves a keyword of the workload at its default."""

    targets: Sequence[str]
    meshes: Sequence[str | None] = (None,)
    batches: Sequence[int | None] = (None,)
    dtypes: Sequence[str | None] = (None,)

    def __iter__(self) -> Iterator[Choice]:
        return itertools.product(self.targets, self.meshes, self.batches, self.dtypes)


@dataclass(frozen=True, kw_only=True)
class Point:
    """A combination of choices: its estimate, or why there is none."""

    target: str
    mesh: str | None
    batch: int | None
    dtype: str | None
    estimate: Estimate | None = None
    error: str = ""

    @property
    def choice(self) -> Choice:
        """All that was chosen."""
        return self.target, self.mesh, self.batch, self.dtype

    @property
    def label(self) -> str:
        """All that was chosen, in short."""
        batch = None if self.batch is None else f"b{self.batch}"
        return " ".join(filter(None, (self.target, self.mesh, batch, self.dtype)))

    @property
    def usable(self) -> bool:
        """Whether it fits the memory."""
        return self.estimate is not None and self.estimate.fits

    @property
    def time_ns(self) -> float:
        """The time of a step. Only points with an estimate have one."""
        assert self.estimate is not None
        return self.estimate.step_ns

    @property
    def cost(self) -> float:
        """What `Sweep.cost_unit` says. Only where there is an estimate."""
        assert self.estimate is not None
        estimate = self.estimate
        step = estimate.usd_per_step
        if step is None:
            step = estimate.instances * estimate.step_seconds
        count = estimate.tokens or estimate.samples
        return step / count * MILLION if count else step


DIED = (
    "the process that estimated it died without a result, perhaps because memory ran out (with "
    "--workers, use fewer) or because XLA ended it"
)
"""The error of a point that took its process with it."""


def _point(choice: Choice, estimate: Estimate | None = None, error: str = "") -> Point:
    target, mesh, batch, dtype = choice
    return Point(target=target, mesh=mesh, batch=batch, dtype=dtype, estimate=estimate, error=error)


@dataclass(frozen=True, kw_only=True, repr=False)
class Sweep(Displayed):
    """All points, in the order of the grid."""

    workload: str
    points: tuple[Point, ...]

    @property
    def cost_unit(self) -> str:
        """What costs are: dollars where every point has a price, else time of instances."""
        return cost_unit(point.estimate for point in self.points if point.estimate)

    @property
    def front(self) -> tuple[Point, ...]:
        """Points that no other beats in both time and cost, fastest first."""
        return tuple(pareto([point for point in self.points if point.usable]))

    def parts(self) -> Iterator[Table]:
        front = set(map(id, self.front))
        rows = [_row(point, id(point) in front) for point in self.points if point.estimate]
        errors = [f"  {point.label}: {point.error}" for point in self.points if point.error]
        estimates = [point.estimate for point in self.points if point.estimate]
        cost = f"cost: {self.cost_unit}, whole instances. *: no other is both faster and cheaper."
        bases = [table.bases(estimates), *table.assumptions(estimates)] if estimates else []
        note = "\n".join((cost, *bases, *(["impossible:", *errors] if errors else [])))
        yield Table(rows, head=_HEADINGS, title=self.workload, note=note)

    def to_json(self) -> str:
        """The sweep as a JSON object: each point, its estimate, and whether it is on the front."""
        front = set(map(id, self.front))
        points = [
            {
                "target": point.target,
                "mesh": point.mesh,
                "batch": point.batch,
                "dtype": point.dtype,
                "error": point.error or None,
                "pareto": id(point) in front,
                "estimate": point.estimate.as_dict() if point.estimate else None,
            }
            for point in self.points
        ]
        return json.dumps(
            {"workload": self.workload, "cost_unit": self.cost_unit, "points": points}, indent=2
        )


@dataclass(frozen=True, kw_only=True)
class Estimating:
    """How points are estimated: it can be sent to another process, and is called with a choice.

    All targets have the price `price`, or their own.
    """

    factory: Factory
    lnc: int | None = None
    machine: Given = None
    price: float | None = None
    prices: Prices = field(default_factory=dict)
    layers: int | None = None
    depths: tuple[int, int] = DEPTHS
    while_trips: int = 1
    faults: str = ""
    pad: bool = False
    with_findings: bool = False

    def __call__(self, choice: Choice) -> Point:
        """What is impossible becomes a point with its error."""
        try:
            return _point(choice, estimate=self._estimate(*choice))
        except NeuronError as error:  # such as a mesh that does not divide a weight
            return _point(choice, error=str(error).partition("\n")[0])

    def _estimate(
        self, target: str, mesh: str | None, batch: int | None, dtype: str | None
    ) -> Estimate:
        setting = setting_of(
            target,
            self.lnc,
            self.machine,
            self.while_trips,
            self.faults,
            with_findings=self.with_findings,
        )
        return of_factory(
            self.factory,
            setting,
            abstract_mesh(mesh),
            price=price_for(setting.machine.target, self.price, self.prices),
            layers=self.layers,
            depths=self.depths,
            batch=batch,
            dtype=dtype,
            pad=self.pad or None,
        )


def sweep(
    estimating: Estimating,
    grid: Grid,
    *,
    runner: Runner[Choice, Point] = in_turn,
    kept: Mapping[Choice, Point] | None = None,
    done: Callable[[Point], None] = lambda point: None,
) -> Sweep:
    """Every combination, by default one after the other; those that are `kept` are not estimated
    again.

    `done` hears of each that was estimated as soon as it is there.
    """
    points = dict(kept or {})
    choices = [choice for choice in grid if choice not in points]
    points |= zip(choices, estimated(estimating, choices, runner, done), strict=True)
    return Sweep(workload=estimating.factory.name, points=tuple(points[choice] for choice in grid))


def estimated(
    estimating: Estimating,
    choices: Sequence[Choice],
    runner: Runner[Choice, Point] = in_turn,
    done: Callable[[Point], None] = lambda point: None,
) -> list[Point]:
    """The points of some choices; of one whose process died it says so. `done` is as in `sweep`."""
    points: dict[int, Point] = {}
    for number, answer in runner(estimating, choices):
        points[number] = answer or _point(choices[number], error=DIED)
        done(points[number])
    return [points[number] for number in range(len(choices))]


def cost_unit(estimates: Iterable[Estimate]) -> str:
    """The unit of the costs of points with these estimates."""
    known = list(estimates)
    unit = "$" if known and all(estimate.price for estimate in known) else "instance seconds"
    if known and all(estimate.tokens for estimate in known):
        return f"{unit} per M tokens"
    if known and all(estimate.samples and not estimate.tokens for estimate in known):
        return f"{unit} per M samples"
    return f"{unit} per step"


def pareto(points: Iterable[Point]) -> Iterator[Point]:
    """Fastest first; each later one is cheaper than all before it."""
    best = float("inf")
    for point in sorted(points, key=lambda rated: (rated.time_ns, rated.cost)):
        if point.cost < best:
            best = point.cost
            yield point


_HEADINGS = (
    "", "target", "mesh", "batch", "dtype", "step", "80 % range", "tokens/s", "MFU", "HBM",
    "cost", "",
)  # fmt: skip


def _row(point: Point, on_front: bool) -> tuple[str, ...]:
    estimate = point.estimate
    assert estimate is not None
    shown = digits(*estimate.range_ns) + 1
    rate = rounded(estimate.tokens_per_second, shown) if estimate.tokens_per_second else "-"
    return (
        "*" if on_front else "",
        point.target,
        point.mesh or "-",
        str(point.batch or "-"),
        point.dtype or "-",
        *duration_within(estimate.step_ns, *estimate.range_ns),
        rate,
        f"{rounded(estimate.mfu_estimated_percent, shown)} %",
        table.occupancy(estimate),
        rounded(point.cost, shown),
        "" if estimate.fits else "does not fit",
    )
