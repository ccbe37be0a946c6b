"""The benchmarks: that the estimator is right and every row's machinery works; never how fast."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from launch.benchmarks import processes, report
from launch.benchmarks.paired import Measurement, compare, time_pairs
from launch.benchmarks.platforms import Settings, devices
from launch.benchmarks.rows import ROWS, Row

PROJECT = Path(__file__).resolve().parents[2]


class Machine:
    """A clock that only its own work moves, on a machine that gets slower all the time."""

    def __init__(self, slowdown: float) -> None:
        self.now = 0.0
        self.load = 1.0
        self.slowdown = slowdown

    def clock(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        self.now += seconds * self.load
        self.load *= self.slowdown


@pytest.mark.parametrize("slowdown", [1.0, 1.05, 0.95])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 3.0])
def test_paired_ratio_is_right_while_the_machine_slows_down(ratio: float, slowdown: float) -> None:
    machine = Machine(slowdown)
    seconds = time_pairs(
        lambda: machine.work(ratio), lambda: machine.work(1.0), 40, warmup=2, clock=machine.clock
    )
    found = compare(*seconds, how="ratio")
    # Pairs are off by one slowdown, up in one order and down in the other: that is all.
    error = (slowdown + 1 / slowdown) / 2 - 1
    assert found.value == pytest.approx(ratio, rel=error + 1e-9)
    # The first call of one and the last of the other are a bad estimate: the load has changed.
    if slowdown != 1.0:
        assert seconds[0][0] / seconds[1][-1] != pytest.approx(ratio, rel=0.5)


def test_outliers_do_not_move_the_median() -> None:
    ours = [2.0] * 9 + [1000.0] * 2
    found = compare(ours, [1.0] * 11, how="ratio")
    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)
    assert found.details == {"subject_seconds": 2.0, "baseline_seconds": 1.0}


def test_differences_are_taken_pairwise() -> None:
    assert compare([5.0, 7.0, 9.0], [4.0, 6.5, 7.0], how="difference").value == 1.0


def test_repetitions_and_warmup_are_counted_and_the_order_alternates() -> None:
    calls: list[str] = []
    seconds = time_pairs(lambda: calls.append("a"), lambda: calls.append("b"), 3, warmup=1)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"
    assert [len(side) for side in seconds] == [3, 3]


def measure_quickly(settings: Settings, repetitions: int) -> Measurement:
    return Measurement(float(repetitions), 1.0, 3.0, {})


def measure_badly(settings: Settings, repetitions: int) -> Measurement:
    raise RuntimeError("no such device\nand a long explanation")


@pytest.mark.parametrize(
    ("target", "measure", "met", "text"),
    [
        (5.0, measure_quickly, True, "met"),
        (4.0, measure_quickly, False, "missed"),
        (5.0, measure_badly, False, "failed: RuntimeError: no such device"),
    ],
)
def test_findings(target: float, measure: object, met: bool, text: str) -> None:
    row = Row("row", target, "s", 5, measure)  # type: ignore[arg-type]
    finding = report.measure(row, Settings())
    assert finding.met is met
    assert finding.line().endswith(text)
    assert finding.record()["met"] is met
    assert ("explanation" in finding.record()["error"]) is (finding.measurement is None)


def test_rows_are_chosen_by_name() -> None:
    assert [row.name for row in report.chosen(ROWS, "tiny*")] == ["tiny call"]
    with pytest.raises(ValueError, match="there are: training step, "):
        report.chosen(ROWS, "nothing")


def test_too_few_devices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"asked for 100000 devices of platform cpu"):
        devices("cpu", 100_000)


def test_the_binary_measures_cpu_against_itself(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    command = [sys.executable, "-m", "launch.bench", "--platform=cpu", "--repetitions=2"]
    process = subprocess.run(
        [*command, "--rows=t* [!s]*", f"--out={out}"],
        cwd=PROJECT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    document = json.loads(out.read_text())
    assert document["settings"] == {"platform": "cpu", "baseline": "cpu", "repetitions": 2}
    (row,) = document["rows"]
    assert (row["name"], row["error"]) == ("tiny call", "")
    found = row["measurement"]
    assert 0 < found["low"] <= found["value"] <= found["high"]
    assert row["name"] in process.stdout


def test_growth_is_measured_in_a_process() -> None:
    found = processes.growth(Settings(platform="cpu"), repetitions=1, calls=10)
    assert np.isfinite(found.value)


def test_rounding_is_measured_in_a_process() -> None:
    found = processes.rounding(Settings(platform="cpu"), repetitions=1, calls=1)
    assert len(found.details) == 10
    assert found.value == max(found.details.values())
    assert min(found.details.values()) > 0


def test_a_failing_process_says_why() -> None:
    with pytest.raises(RuntimeError, match="nowhere"):
        processes.run_child("nowhere", ["first_jit"], {})
