"""The scheduler on a simulated clock: each step takes what a table says of its bucket."""

import math
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from launch.serving.scheduler.buckets import Bucket
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.scheduler.scheduler import Scheduler
from launch.serving.scheduler.sequences import Sequence
from launch.serving.scheduler.steps import Counters, Step
from launch.serving.virtual.latencies import Latencies
from launch.serving.virtual.traffic import Arrival


@dataclass(frozen=True)
class Outcome:
    """What clients saw, in seconds of the device. Arrays have an entry per request."""

    arrived: np.ndarray
    first_token: np.ndarray
    finished: np.ndarray
    tokens: np.ndarray  # of the answer
    between_tokens: Latencies
    steps: int
    busy: float  # seconds in which the device ran
    counters: Counters

    @property
    def duration(self) -> float:
        """From the first arrival to the last token."""
        return float(self.finished.max() - self.arrived.min())

    @property
    def to_first(self) -> np.ndarray:
        """Times to the first token."""
        return self.first_token - self.arrived

    @property
    def per_token(self) -> np.ndarray:
        """Mean times per token after the first; NaN for answers of one."""
        rest = np.where(self.tokens > 1, self.tokens - 1, np.nan)
        return (self.finished - self.first_token) / rest


def simulate(
    limits: SchedulerLimits,
    timing: Callable[[Bucket], float],
    arrivals: Items[Arrival],
    *,
    steps_ahead: int = 1,
    on_step: Callable[[Step, float], None] | None = None,
) -> Outcome:
    """Answers all arrivals, which are in order of time.

    As in the engine, up to `steps_ahead` steps are planned before the tokens of the one that runs
    are known. `on_step` is told each step and when it ended; without it, runs of equal steps are
    gone through at once, with the same outcome. Raises RequestError for a request that does not fit
    the limits.
    """
    return _Simulation(limits, timing, arrivals, steps_ahead, on_step).run()


_WORTH = 2  # equal steps in a row, at least, that are gone through at once
_LONGEST = 1 << 20


def _alike(step: Step, other: Step) -> bool:
    """Whether two steps do the same for the same sequences."""
    return step is other or (
        step.bucket == other.bucket
        and len(step.slots) == len(other.slots)
        and bool((step.serials == other.serials).all() and (step.slots == other.slots).all())
    )


class _Simulation:
    def __init__(
        self,
        limits: SchedulerLimits,
        timing: Callable[[Bucket], float],
        arrivals: Items[Arrival],
        steps_ahead: int,
        on_step: Callable[[Step, float], None] | None,
    ) -> None:
        self._scheduler = Scheduler(limits)
        self._timing, self._depth, self._on_step = timing, 1 + steps_ahead, on_step
        self._arrivals = arrivals
        self._coming = 0
        count = len(arrivals)
        self._first = np.full(count, np.nan)
        self._finished = np.full(count, np.nan)
        self._latest = np.zeros(count)
        self._between = Latencies()
        self._no_tokens = np.zeros(limits.slots, np.int32)

    def run(self) -> Outcome:
        now = free = busy = 0.0
        steps = 0
        under_way: deque[tuple[Step, float]] = deque()
        while True:
            self._submit(now)
            step = self._scheduler.plan() if len(under_way) < self._depth else None
            if step is not None:
                seconds = self._timing(step.bucket)
                free = max(now, free) + seconds
                busy += seconds
                steps += 1
                under_way.append((step, free))
            elif under_way:
                most = self._equal_steps(under_way)
                if most >= _WORTH:
                    times, now, free, busy = self._leap(under_way, most, free, busy)
                    steps += times
                    continue
                step, now = under_way.popleft()
                self._complete(step, now)
            elif self._coming < len(self._arrivals):
                now = max(now, self._arrivals[self._coming].seconds)
            else:
                break
        arrived = np.array([arrival.seconds for arrival in self._arrivals])
        tokens = np.array([arrival.max_tokens for arrival in self._arrivals])
        return Outcome(
            arrived,
            self._first,
            self._finished,
            tokens,
            self._between,
            steps,
            busy,
            self._scheduler.counters,
        )

    def _submit(self, now: float) -> None:
        arrivals = self._arrivals
        while self._coming < len(arrivals) and arrivals[self._coming].seconds <= now:
            arrival = arrivals[self._coming]
            limit = len(arrival.prompt) + arrival.max_tokens
            self._scheduler.submit(Sequence("", list(arrival.prompt), limit))
            self._coming += 1

    def _equal_steps(self, under_way: deque[tuple[Step, float]]) -> int:
        """How often the oldest step may be completed and one like the newest be planned before
        anything but an arrival happens, and about how often before that; 0 where it saves
        nothing."""
        newest = under_way[-1][0]
        if self._on_step is not None or len(under_way) < self._depth:
            return 0
        if under_way[0][0].bucket != newest.bucket or not newest.is_decode:
            return 0
        # One more than there is time for: rounding is left to the sums of a leap.
        most = (self._next_arrival() - under_way[0][1]) / self._timing(newest.bucket) + 1
        if most < _WORTH or not all(_alike(step, newest) for step, _ in under_way):
            return 0
        if np.count_nonzero(np.isnan(self._first[newest.numbers])):
            return 0
        return min(self._scheduler.repeatable(newest), math.ceil(min(most, _LONGEST)))

    def _next_arrival(self) -> float:
        if self._coming == len(self._arrivals):
            return math.inf
        return self._arrivals[self._coming].seconds

    def _leap(
        self, under_way: deque[tuple[Step, float]], most: int, free: float, busy: float
    ) -> tuple[int, float, float, float]:
        """Completes and plans up to so many equal steps that end before the next arrival; their
        number, the clock, the device's, and its busy time."""
        newest = under_way[-1][0]
        seconds, numbers = self._timing(newest.bucket), newest.numbers
        # Sums one after the other: exactly what step by step would give.
        later = np.add.accumulate([free, *[seconds] * most])
        ends = np.array([end for _, end in under_way] + later[1:].tolist())
        times = int(np.searchsorted(ends[:most], self._next_arrival()))
        completed, ends = ends[:times], ends[times : times + len(under_way)]
        self._between.add(completed[0] - self._latest[numbers])
        self._between.add(np.diff(completed), len(numbers))
        self._latest[numbers] = completed[-1]
        self._scheduler.repeat(newest, times)
        under_way.clear()
        under_way.extend((newest, float(end)) for end in ends)
        total = np.add.accumulate([busy, *[seconds] * times])[-1]
        return times, float(completed[-1]), float(later[times]), float(total)

    def _complete(self, step: Step, now: float) -> None:
        progress = self._scheduler.complete(step, self._no_tokens[: len(step.slots)])
        rows = progress.rows
        numbers = step.numbers if len(rows) == len(step.slots) else step.numbers[rows]
        # The numbers count arrivals: they are indices.
        later = numbers
        is_first = np.isnan(self._first[numbers])
        if np.count_nonzero(is_first):
            self._first[numbers[is_first]] = now
            later = numbers[~is_first]
        self._between.add(now - self._latest[later])
        self._latest[numbers] = now
        if progress.finished:
            self._finished[numbers[list(progress.finished)]] = now
        if self._on_step is not None:
            self._on_step(step, now)
