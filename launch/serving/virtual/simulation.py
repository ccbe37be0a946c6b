"""The scheduler on a simulated clock: each step takes what a table says of its bucket."""

import math
from collections.abc import Callable
from collections.abc import Sequence as Items

import numpy as np

from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.scheduler.steps import Step
from launch.serving.virtual.latencies import Latencies
from launch.serving.virtual.one_copy import Coming, Copy, Pace
from launch.serving.virtual.outcome import Outcome
from launch.serving.virtual.traffic import Arrival


def simulate(
    limits: SchedulerLimits,
    pace: Pace,
    arrivals: Items[Arrival],
    *,
    copies: int = 1,
    on_step: Callable[[Step, float], None] | None = None,
) -> Outcome:
    """Answers all arrivals, which are in order of time, by `copies` of the model, each with these
    limits and with cores of its own.

    `on_step` is told each step and when it ended; without it, runs of equal steps are gone through
    at once, with the same outcome. Raises RequestError for a request that does not fit the limits.
    """
    count = len(arrivals)
    between = Latencies()
    engines = [Copy(limits, pace, count, between, on_step=on_step) for _ in range(copies)]
    owners = np.zeros(count, np.int64)
    for number, arrival in enumerate(arrivals):
        for engine in engines:
            engine.advance(arrival.seconds)
        owners[number] = _give(engines, arrival)
    first, finished = np.zeros(count), np.zeros(count)
    for number, engine in enumerate(engines):
        engine.advance(math.inf)
        own = owners == number
        first[own], finished[own] = engine.first[: own.sum()], engine.finished[: own.sum()]
    return Outcome.of(engines, arrivals, first, finished, between)


def _give(engines: Items[Copy], arrival: Arrival) -> int:
    """Chooses a copy for a request as `Replicas` does; its number."""
    if len(engines) == 1:
        engines[0].take(Coming(arrival))
        return 0
    new = [engine.new_tokens(arrival) for engine in engines]
    left = [engine.left + tokens for engine, tokens in zip(engines, new, strict=True)]
    number = left.index(min(left))
    engines[number].take(Coming(arrival), new[number])
    return number
