"""Learning rates over the steps of a run: a linear warm-up, then what SCHEDULES names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import optax

from launch.settings import check_settings, setting


def _constant(settings: "ScheduleSettings", steps: int) -> optax.Schedule:
    return optax.constant_schedule(settings.learning_rate)


def _cosine(settings: "ScheduleSettings", steps: int) -> optax.Schedule:
    """Loshchilov and Hutter, "SGDR", 2017, without restarts."""
    return optax.cosine_decay_schedule(
        settings.learning_rate, steps, alpha=settings.final_learning_rate
    )


def _linear(settings: "ScheduleSettings", steps: int) -> optax.Schedule:
    peak = settings.learning_rate
    return optax.linear_schedule(peak, peak * settings.final_learning_rate, steps)


def _warmup_stable_decay(settings: "ScheduleSettings", steps: int) -> optax.Schedule:
    """Constant, then linear. Hu et al., "MiniCPM", 2024; Hägele et al., 2024."""
    decay_steps = min(steps, max(1, round(settings.decay_share * steps)))
    return optax.join_schedules(
        [_constant(settings, steps), _linear(settings, decay_steps)], [steps - decay_steps]
    )


SCHEDULES: Mapping[str, Callable[["ScheduleSettings", int], optax.Schedule]] = {
    "constant": _constant,
    "cosine": _cosine,
    "linear": _linear,
    "wsd": _warmup_stable_decay,
}
"""Name -> what follows the warm-up, for so many steps."""


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings:
    """The learning rate of every step. Raises SettingsError for what cannot be."""

    schedule: str = setting("cosine", "What follows the warm-up.", choices=SCHEDULES)
    learning_rate: float = setting(3e-3, "Learning rate at the end of the warm-up.", lowest=0.0)
    final_learning_rate: float = setting(
        0.1, "Learning rate at the end, as a share of --learning_rate.", lowest=0.0
    )
    warmup_steps: int = setting(50, "Steps of linear warm-up.", lowest=0)
    decay_share: float = setting(
        0.2, "Share of the steps after the warm-up that the decay of 'wsd' takes.", lowest=0.0
    )

    def __post_init__(self) -> None:
        check_settings(self)


def make_schedule(settings: ScheduleSettings, steps: int) -> optax.Schedule:
    """Number of the step, from 0 -> learning rate, for a run of so many steps.

    The warm-up begins at learning_rate / (warmup_steps + 1), so that the first step counts, and
    ends before the last step.
    """
    warmup_steps = min(settings.warmup_steps, steps - 1)
    warmup = optax.linear_schedule(
        settings.learning_rate / (settings.warmup_steps + 1), settings.learning_rate, warmup_steps
    )
    after = SCHEDULES[settings.schedule](settings, steps - warmup_steps)
    return optax.join_schedules([warmup, after], [warmup_steps])
