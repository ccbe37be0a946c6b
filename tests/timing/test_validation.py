"""The model against public measurements: no group may get worse than this."""

from __future__ import annotations

import dataclasses
import json

import pytest

from launch.validation_models import MEASUREMENTS
from neuronjax.program.verify import verify
from neuronjax.timing.calibration import CALIBRATION, CHOSEN, FITTED
from neuronjax.timing.validation.leave_one_out import without
from neuronjax.timing.validation.measured_kernels import programs
from neuronjax.timing.validation.points import POINTS, Kind, Point
from neuronjax.timing.validation.predictions import Model, predict
from neuronjax.timing.validation.report import Row, as_json, rows, summaries, text


@pytest.fixture(scope="module")
def table() -> tuple[Row, ...]:
    return tuple(rows())


def test_errors_are_small(table: tuple[Row, ...]) -> None:
    groups = {each.name: each for each in summaries(table)}
    kernels, collectives = groups[Kind.KERNEL.value], groups[Kind.COLLECTIVE.value]
    assert kernels.mape <= 0.03
    assert kernels.worst <= 0.08
    assert collectives.mape <= 0.05
    assert collectives.worst <= 0.13
    assert groups[f"{Kind.KERNEL.value}, not calibrated"].mape <= 0.04


def _name(point: Point) -> str:
    return point.name


@pytest.mark.parametrize("point", [point for point in POINTS if point.is_bound], ids=_name)
def test_upper_bounds_hold(point: Point) -> None:
    (row,) = rows(wanted=point.__eq__)
    assert row.error == 0


def test_every_point_has_a_prediction(table: tuple[Row, ...]) -> None:
    assert [row.point for row in table] == list(POINTS)
    assert len({point.name for point in POINTS}) == len(POINTS)


def test_every_constant_says_what_it_was_fitted_to() -> None:
    assert set(FITTED) == {each.name for each in dataclasses.fields(CALIBRATION)}
    models = {entry["name"] for entry in MEASUREMENTS}
    names = {point.name for point in POINTS} | models
    of_models = {name for name, points in FITTED.items() if models & {*points}}
    assert of_models == {"host_call_ns", "first_token_host_ns"}
    for points in (*FITTED.values(), *CHOSEN.values()):
        assert points
        assert set(points) <= names


def test_there_are_fewer_constants_than_points() -> None:
    counted = [point for point in POINTS if not point.left_out]
    assert 2 * len(FITTED) < len(counted)


@pytest.mark.parametrize("name", programs())
def test_the_measured_kernels_could_run(name: str) -> None:
    assert verify(programs()[name]) == ()


def test_predictions_follow_the_constants() -> None:
    slower = dataclasses.replace(CALIBRATION, wake_ns=300.0)
    (point,) = (each for each in POINTS if each.name == "K5 interval")
    assert predict(point, Model(slower)) > predict(point, Model()) + 200


FIRST, SECOND, LONE = (Point(f"X{at}", Kind.KERNEL, "", 100.0 * at, "") for at in (1, 2, 3))


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        pytest.param(FIRST, 200.0, id="what another point says"),
        pytest.param(LONE, None, id="alone"),
    ],
)
def test_what_is_left_out_is_predicted_by_other_points(
    monkeypatch: pytest.MonkeyPatch, point: Point, expected: float | None
) -> None:
    fitted = {"wake_ns": (FIRST.name, SECOND.name), "dma_start_ns": (LONE.name,)}
    monkeypatch.setattr("neuronjax.timing.validation.leave_one_out.FITTED", fitted)
    known = {
        FIRST: lambda calibration: 4 * calibration.wake_ns,
        SECOND: lambda calibration: 4 * calibration.wake_ns,
        LONE: lambda calibration: calibration.dma_start_ns,
    }
    found = without(point, known)
    assert found == (expected if expected is None else pytest.approx(expected, rel=0.01))


def test_a_point_that_nothing_was_fitted_to_stays_as_it_is(table: tuple[Row, ...]) -> None:
    (row,) = (row for row in table if row.point.name == "K17")
    assert row.without == row.predicted


def test_the_table_says_all(table: tuple[Row, ...]) -> None:
    shown = text(table)
    counted = sum(not point.left_out for point in POINTS)
    assert f"validated against {counted} public points" in shown
    assert all(point.name in shown for point in POINTS)
    assert "cycle accurate" not in shown


def test_json_has_all_points_and_groups(table: tuple[Row, ...]) -> None:
    found = json.loads(json.dumps(as_json(table)))
    assert len(found["points"]) == len(POINTS)
    assert {each["group"] for each in found["summaries"]} >= {row.point.kind.value for row in table}
