"""Constants fitted to a user's measurements: those of a machine whose constants are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from neuronjax.cli.main import main
from neuronjax.errors import ConfigurationError
from neuronjax.planning.calibrate import Calibrated, Measured, calibrate, movable
from neuronjax.planning.workload import load
from neuronjax.timing.calibration import CALIBRATION, Calibration

TARGET = "trn1.2xlarge"
BATCHES = (128, 512, 1024, 2048)
SLOW = dataclasses.replace(
    CALIBRATION, host_call_ns={**CALIBRATION.host_call_ns, 2: 180_000.0}, dma_completion_ns=1_600.0
)
"""A machine whose host and write receipts take twice as long."""


def measured(calibration: Calibration, batches: tuple[int, ...] = BATCHES) -> list[Measured]:
    """What a machine with these constants would have measured."""
    points = []
    for batch in batches:
        for name in ("stack", "whole"):
            point = Measured(
                factory=load(f"tests.planning.programs:{name}"),
                target=TARGET,
                milliseconds=1.0,
                given={"batch": batch},
            )
            time = point.estimate(calibration).step_ns / 1e6
            points.append(dataclasses.replace(point, milliseconds=time))
    return points


@pytest.fixture(scope="module")
def found() -> Calibrated:
    return calibrate(measured(SLOW))


@pytest.mark.slow
def test_a_slower_machine_is_recognised(found: Calibrated) -> None:
    assert found.helps
    assert found.error(lambda row: row.before) > 0.3
    assert found.error(lambda row: row.after) < 0.03
    assert found.error(lambda row: row.left_out) < 0.05
    constants = {constant.label: new / old for constant, old, new in found.changes}
    assert constants["host_call_ns.2"] == pytest.approx(2.0, rel=0.15)


@pytest.mark.slow
def test_constants_stay_within_their_bounds(found: Calibrated) -> None:
    for constant, _, new in found.changes:
        assert constant.low <= new <= constant.high


@pytest.mark.slow
def test_constants_that_nothing_depends_on_stay(found: Calibrated) -> None:
    fixed = dict(found.fixed)
    assert fixed["collective_base_ns"] == "0 measurements depend on it"
    labels = {constant.label for constant in movable(2)}
    assert {constant.label for constant, _, _ in found.changes} | set(fixed) == labels


@pytest.mark.slow
def test_a_machine_as_it_is_known_is_not_predicted_better() -> None:
    found = calibrate(measured(CALIBRATION, BATCHES[:2]))
    assert not found.helps
    for _, old, new in found.changes:
        assert new == pytest.approx(old, rel=1e-3)


def at_once(points: list[Measured]) -> list[Measured]:
    """The first of the points in a nanosecond."""
    return [dataclasses.replace(points[0], milliseconds=1e-6), *points[1:]]


def on_another(points: list[Measured]) -> list[Measured]:
    """The first of the points on a newer machine."""
    return [dataclasses.replace(points[0], target="trn2.3xlarge"), *points[1:]]


IMPOSSIBLE: dict[str, tuple[Callable[[list[Measured]], list[Measured]], str]] = {
    "faster than its bytes": (at_once, "is impossible: its arithmetic and its bytes need"),
    "too few": (lambda points: points[:2], "2 measurements cannot move a constant"),
    "two generations": (on_another, "of several kinds of cores"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_cannot_be_fitted_says_why(case: str) -> None:
    change, words = IMPOSSIBLE[case]
    with pytest.raises(ConfigurationError, match=words):
        calibrate(change(measured(CALIBRATION, BATCHES[:2])))


def table(points: list[Measured], extra: str = "") -> str:
    rows = [
        f"{point.factory.name},{point.target},{point.milliseconds:.9f},{point.given['batch']}{extra}"
        for point in points
    ]
    return "\n".join(rows) + "\n"


HEAD = "workload,target,milliseconds,batch"


@pytest.mark.slow
def test_a_file_that_estimate_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points = measured(SLOW, BATCHES[:3])
    given, out = tmp_path / "measured.csv", tmp_path / "mine.toml"
    given.write_text(f"{HEAD}\n{table(points)}")
    assert main(["calibrate", str(given), f"--out={out}"]) == 0
    assert "host_call_ns.2" in capsys.readouterr().out
    words = [
        "estimate",
        points[0].factory.name,
        f"--target={TARGET}",
        "--format=json",
        "--batch=128",
    ]
    times = []
    for calibration in ([], [f"--calibration={out}"]):
        assert main([*words, *calibration]) == 0
        text = capsys.readouterr().out
        times.append(float(text.partition('"step_ns": ')[2].partition(",")[0]) / 1e6)
    before, after = (abs(time / points[0].milliseconds - 1) for time in times)
    assert after < 0.05 < before


BAD_FILES = {
    "no column": ("workload,target\na:b,trn1.2xlarge\n", "lacks milliseconds"),
    "nothing": ("", "lacks rows"),
    "no number": (f"{HEAD}\ntests.planning.programs:stack,{TARGET},soon,128\n", "'soon'"),
    "several releases": (
        f"{HEAD},release\ntests.planning.programs:stack,{TARGET},1,128,2.20\n"
        f"tests.planning.programs:stack,{TARGET},1,256,2.21\n",
        "several releases: '2.20', '2.21'",
    ),
    "cells": (f"{HEAD}\ntests.planning.programs:stack,{TARGET}\n", "another number of cells"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_damaged_files(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, words = BAD_FILES[case]
    path = tmp_path / "measured.csv"
    path.write_text(text)
    assert main(["calibrate", str(path)]) == 2
    assert words in capsys.readouterr().err
