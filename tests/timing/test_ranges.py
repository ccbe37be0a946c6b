"""Ranges of times: their quantiles are numpy's, they hold, and they know what they rest on."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from launch.validation_models import MEASUREMENTS
from neuronjax.timing.ranges import (
    FEWEST_POINTS,
    PARENTS,
    PROGRAMS,
    RESULTS,
    Coverage,
    Measured,
    Traits,
    chip_spread,
    coverage,
    error_range,
    measured,
    members,
    range_of,
)
from neuronjax.timing.validation.points import POINTS
from neuronjax.timing.validation.predictions import Model, predict

DECODING = Traits(chip="trainium1", ranks=32, intensity=0.01, collective_share=0.5)


@pytest.mark.parametrize("count", [10, 13, 37])
def test_bounds_are_quantiles_of_the_errors_and_nothing(count: int) -> None:
    errors = np.random.default_rng(count).normal(0.0, 0.2, count)
    low, high = np.quantile(errors, [0.1, 0.9], method="weibull")
    assert error_range(list(errors)) == pytest.approx((low, high))
    assert error_range(list(errors + 9)) == pytest.approx((0.0, high + 9))


@pytest.mark.parametrize("row", list(coverage(measured())), ids=lambda row: row.class_name)
def test_ranges_hold_for_points_that_are_left_out(row: Coverage) -> None:
    assert 0.7 <= row.within / row.points <= 0.9
    assert row.low < 1 < row.high


def test_most_classes_of_programs_have_enough_points() -> None:
    checked = {row.class_name for row in coverage(measured())}
    assert {PROGRAMS, "decoding", "forward passes"} < checked
    assert checked - {PROGRAMS, "collectives", "kernels and instructions"} <= set(PARENTS)


def test_ranges_of_normal_errors_hold_where_they_are_drawn_from() -> None:
    """Of 2,000 draws of eleven points, the range of ten has the eleventh in four of five."""
    draws = np.random.default_rng(0).normal(0.0, 0.2, (2000, 11))
    bounds = np.array([error_range(list(draw[:10])) for draw in draws])
    assert np.mean((bounds[:, 0] <= draws[:, 10]) & (draws[:, 10] <= bounds[:, 1])) == (
        pytest.approx(0.81, abs=0.03)
    )


def test_the_committed_results_are_of_all_points() -> None:
    results = {point["name"]: point for point in json.loads(RESULTS.read_text())["points"]}
    assert list(results) == [point.name for point in POINTS] + [row["name"] for row in MEASUREMENTS]
    for point in POINTS:
        assert results[point.name]["predicted"] == pytest.approx(predict(point, Model()), rel=1e-6)
    for row in MEASUREMENTS:
        assert results[row["name"]]["published"] == pytest.approx(row["published"])


WIDENED = {
    "another chip": (replace(DECODING, chip="trainium3"), "none of them is of trainium3"),
    "a changed machine": (replace(DECODING, is_changed=True), "records were changed"),
    "an assumed record": (replace(DECODING, assumed=("x", "y")), "2 entries of its record"),
    "many cores": (replace(DECODING, ranks=512), "points have at most 64 cores"),
    "layers": (replace(DECODING, is_extrapolated=True), "layers are extrapolated"),
    "narrow formats": (
        replace(DECODING, tensor_share=0.5, narrow_rate=2.0),
        "no public time is of FP8 or FP4 products (up to +50%)",
    ),
    "the host": (replace(DECODING, host_share=0.3), "the host's own work is not timed"),
}


@pytest.mark.parametrize("case", WIDENED)
def test_what_an_estimate_rests_on_widens_its_range(case: str) -> None:
    traits, reason = WIDENED[case]
    plain, wider = range_of(1e6, DECODING), range_of(1e6, traits)
    assert wider.low_ns <= plain.low_ns < 1e6 < plain.high_ns < wider.high_ns
    assert reason in wider.basis
    assert "wider" not in plain.basis


def test_hosts_only_make_a_step_slower() -> None:
    plain, wider = range_of(1e6, DECODING), range_of(1e6, replace(DECODING, host_share=0.3))
    assert wider.low_ns == plain.low_ns


CLASSES = {
    "decoding on several cores": DECODING,
    "decoding on one core": replace(DECODING, collective_share=0.0),
    "forward passes on several cores": replace(DECODING, intensity=0.5),
    "forward passes on one core": replace(DECODING, intensity=0.5, collective_share=0.0),
    "training steps": replace(DECODING, intensity=0.5, is_training=True),
    "single kernels": replace(DECODING, is_one_kernel=True),
}


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_with_too_few_points_says_which_wider_one_stands_for_it(name: str) -> None:
    traits = CLASSES[name]
    assert traits.class_name == name
    own = members(name, measured())
    basis = range_of(1e6, traits).basis
    if len(own) >= FEWEST_POINTS:
        assert basis == f"{name}, {len(own)} public points"
    else:
        assert basis.endswith(f", as there are too few for {name}")
        wider = basis.partition(",")[0]
        assert len(members(wider, measured())) >= FEWEST_POINTS


def test_chips_lie_apart_as_student_predicts() -> None:
    """Three chips, whose points lie at -0.1, 0 and 0.1."""
    points = [
        Measured(f"{chip} {at}", "training steps", chip, 1, center)
        for chip, center in (("a", -0.1), ("b", 0.0), ("c", 0.1))
        for at in range(4)
    ]
    expected = stats.t(df=2, scale=0.1 * math.sqrt(4 / 3)).ppf(0.9)
    assert chip_spread(points) == pytest.approx(expected)


def test_the_range_of_given_points() -> None:
    """Twelve points that are predicted a tenth too fast to a tenth too slow."""
    errors = np.linspace(-0.1, 0.1, 12)
    points = [Measured("X", "decoding on one core", "trainium1", 1, error) for error in errors]
    found = range_of(100.0, CLASSES["decoding on one core"], points)
    low, high = np.quantile(errors, [0.1, 0.9], method="weibull")
    assert found[:2] == pytest.approx((100 * math.exp(-high), 100 * math.exp(-low)))
