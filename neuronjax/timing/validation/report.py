"""Predictions beside measurements: ratios, and errors by group; as text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from neuronjax.timing.calibration import CALIBRATION
from neuronjax.timing.ranges import Coverage, Traits, coverage, read_measured
from neuronjax.timing.validation.leave_one_out import Predictor, without
from neuronjax.timing.validation.points import LEAST_OF_BOUND, POINTS, Kind, Point
from neuronjax.timing.validation.predictions import Model, predict


@dataclass(frozen=True, slots=True)
class Row:
    """A point and its prediction."""

    point: Point
    predicted: float
    #: What a model says whose constants were not fitted to it; None: it alone says what one is.
    without: float | None

    @property
    def ratio(self) -> float:
        """What is predicted over what is published."""
        return self.predicted / self.point.published

    @property
    def error(self) -> float:
        """Relative error; of an upper bound, how far outside of it or below 60 % of it."""
        return _error(self.point, self.predicted)

    @property
    def ratio_without(self) -> float | None:
        """What is predicted without the point over what is published; None: it alone says that."""
        return None if self.without is None else self.without / self.point.published


def _error(point: Point, predicted: float) -> float:
    ratio = predicted / point.published
    if not point.is_bound:
        return abs(ratio - 1)
    return max(0.0, ratio - 1, LEAST_OF_BOUND - ratio)


@dataclass(frozen=True, slots=True)
class Summary:
    """Errors of a group of points."""

    name: str
    count: int
    #: Mean absolute percentage error, median, 95th percentile, and worst; shares, not percents.
    mape: float
    median: float
    p95: float
    worst: float
    worst_name: str


Classes = Mapping[Point, Traits]
"""What is known of the programs of whole models, for the ranges of their class."""


def _class_of(point: Point, classes: Classes) -> dict[str, str | int]:
    traits = classes.get(point)
    if traits is None:
        return {"class": point.kind.value, "chip": point.chip, "ranks": point.ranks}
    return {"class": traits.class_name, "chip": traits.chip, "ranks": traits.ranks}


def predictors(points: Sequence[Point] = POINTS) -> Mapping[Point, Predictor]:
    """What predicts kernels and collectives."""
    return {point: _predictor(point) for point in points}


def _predictor(point: Point) -> Predictor:
    return lambda calibration: predict(point, Model(calibration))


def rows(
    known: Mapping[Point, Predictor] | None = None, wanted: Callable[[Point], object] = bool
) -> Iterator[Row]:
    """The points that are `wanted` among those `known`, with their predictions, one by one."""
    known = predictors() if known is None else known
    for point, predictor in known.items():
        if wanted(point):
            yield Row(point, predictor(CALIBRATION), without(point, known))


def summaries(table: Sequence[Row]) -> tuple[Summary, ...]:
    """Errors by kind: of all points, by whether constants were fitted to them, and of points that
    constants were not fitted to when they were predicted."""
    summarised = []
    for kind in Kind:
        of_kind = [row for row in table if row.point.kind is kind and not row.point.left_out]
        groups = {
            kind.value: of_kind,
            f"{kind.value}, calibrated": [row for row in of_kind if row.point.is_calibrated],
            f"{kind.value}, not calibrated": [
                row for row in of_kind if not row.point.is_calibrated
            ],
        }
        summarised += [
            _summary(name, {row.point: row.error for row in members})
            for name, members in groups.items()
            if members
        ]
        left_out = {
            row.point: _error(row.point, row.without) for row in of_kind if row.without is not None
        }
        if left_out:
            summarised.append(_summary(f"{kind.value}, each left out", left_out))
    return tuple(summarised)


def _summary(name: str, errors_by_point: Mapping[Point, float]) -> Summary:
    ordered = sorted(errors_by_point, key=lambda point: errors_by_point[point])
    errors = [errors_by_point[point] for point in ordered]
    middle = len(errors) // 2
    median = errors[middle] if len(errors) % 2 else (errors[middle - 1] + errors[middle]) / 2
    return Summary(
        name=name,
        count=len(errors),
        mape=sum(errors) / len(errors),
        median=median,
        p95=errors[math.ceil(0.95 * len(errors)) - 1],
        worst=errors[-1],
        worst_name=ordered[-1].name,
    )


def text(table: Sequence[Row], classes: Classes = MappingProxyType({})) -> str:
    """The table that people read."""
    lines = [f"{'point':22}{'predicted':>18}{'published':>18}{'ratio':>7}{'left out':>10}  "]
    for row in table:
        marks = [
            mark
            for mark, holds in (
                ("upper bound", row.point.is_bound),
                ("calibrated", row.point.is_calibrated),
                (f"left out: {row.point.left_out}", row.point.left_out),
            )
            if holds
        ]
        alone = "-" if row.ratio_without is None else f"{row.ratio_without:.3f}"
        lines.append(
            f"{row.point.name:22}{row.predicted:18,.1f}{row.point.published:18,.1f}"
            f"{row.ratio:7.3f}{alone:>10}  {'; '.join(marks)}".rstrip()
        )
    lines.append("")
    lines.append(f"{'group':42}{'points':>7}{'MAPE':>8}{'median':>8}{'P95':>8}{'worst':>8}")
    for summary in summaries(table):
        lines.append(
            f"{summary.name:42}{summary.count:7}{summary.mape:8.1%}{summary.median:8.1%}{summary.p95:8.1%}"
            f"{summary.worst:8.1%}  {summary.worst_name}"
        )
    lines += _coverage_lines(coverage(read_measured(as_json(table, classes))))
    counted = sum(not row.point.left_out for row in table)
    lines += [
        "",
        f"Timing model validated against {counted} public points. Times in ns."
        " The error against an upper bound is how far a prediction lies above it, or below"
        f" {LEAST_OF_BOUND:.0%} of it. Left out: the ratio with constants fitted without this"
        " point; -: some constant has no other points to be fitted to.",
    ]
    return "\n".join(lines)


def _coverage_lines(rows: Iterable[Coverage]) -> Iterator[str]:
    """How the ranges of classes hold, nothing if no class has enough points."""
    lines = [
        f"{row.class_name:42}{row.points:7}{row.within / row.points:8.0%}"
        f"{row.low:8.2f}{row.high:8.2f}{row.median_width:8.0%}"
        for row in rows
    ]
    if lines:
        yield ""
        yield f"{'range of a class':42}{'points':>7}{'within':>8}{'low':>8}{'high':>8}{'width':>8}"
        yield from lines
        yield (
            "Within: points that lie in the range of the others of their class. Low, high: the"
            " range as factors on a prediction. Width: the highest over the lowest, less 1, the"
            " median of the ranges without a point."
        )


def as_json(table: Sequence[Row], classes: Classes = MappingProxyType({})) -> dict[str, Any]:
    """The points of a validation and their predictions, as JSON for programs."""
    return {
        "statement": "timing model validated against"
        f" {sum(not row.point.left_out for row in table)} public points",
        "points": [
            {
                "name": row.point.name,
                "kind": row.point.kind.value,
                "what": row.point.what,
                "predicted": row.predicted,
                "published": row.point.published,
                "ratio": row.ratio,
                "ratio_left_out": row.ratio_without,
                "error": row.error,
                "upper_bound": row.point.is_bound,
                "calibrated": row.point.is_calibrated,
                "left_out": row.point.left_out,
                "source": row.point.source,
                **_class_of(row.point, classes),
            }
            for row in table
        ],
        "summaries": [
            {
                "group": summary.name,
                "points": summary.count,
                "mape": summary.mape,
                "median": summary.median,
                "p95": summary.p95,
                "worst": summary.worst,
                "worst_point": summary.worst_name,
            }
            for summary in summaries(table)
        ],
    }
