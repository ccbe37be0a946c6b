"""Learning rates against the formulas of their papers, in numpy."""

import math

import numpy as np
import pytest

from launch.errors import SettingsError
from launch.training.schedules import SCHEDULES, ScheduleSettings, make_schedule

PEAK, STEPS, WARMUP = 2.0, 100, 20
AFTER = STEPS - WARMUP

FORMULAS = {
    "constant": lambda share: 1.0,
    "cosine": lambda share: 0.1 + 0.9 * (1 + math.cos(math.pi * share)) / 2,
    "linear": lambda share: 1 - 0.9 * share,
    "wsd": lambda share: 1 - 0.9 * max(0.0, share - 0.75) / 0.25,
}
"""Name -> share of the steps after the warm-up to share of the peak."""


def test_every_schedule_has_a_formula() -> None:
    assert set(FORMULAS) == set(SCHEDULES)


@pytest.mark.parametrize("name", FORMULAS)
def test_formula(name: str) -> None:
    settings = ScheduleSettings(
        schedule=name, learning_rate=PEAK, warmup_steps=WARMUP, decay_share=0.25
    )
    schedule = make_schedule(settings, STEPS)
    warmup = np.linspace(PEAK / (WARMUP + 1), PEAK, WARMUP + 1)[:-1]
    rest = [PEAK * FORMULAS[name](step / AFTER) for step in range(AFTER + 1)]
    found = np.array([schedule(step) for step in range(STEPS + 1)])
    np.testing.assert_allclose(found, [*warmup, *rest], rtol=2e-6)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_runs_shorter_than_the_warm_up_end_at_the_peak(name: str, steps: int) -> None:
    schedule = make_schedule(ScheduleSettings(schedule=name, learning_rate=PEAK), steps)
    rates = [float(schedule(step)) for step in range(steps)]
    assert rates == sorted(rates)
    assert rates[-1] == PEAK


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": "cosinus"}, "--schedule=cosinus is unknown; choose one of .*cosine, linear"),
        ({"learning_rate": -1.0}, "--learning_rate=-1.0 must be at least 0"),
        ({"learning_rate": float("nan")}, "--learning_rate=nan must be at least 0"),
    ],
)
def test_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        ScheduleSettings(**changes)  # type: ignore[arg-type]
