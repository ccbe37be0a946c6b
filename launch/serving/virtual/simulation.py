"""The scheduler on a simulated clock: each step takes what a table says of its bucket."""

import math
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from launch.serving.cache.prefixes import ROOT, text_keys
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
    busy: float  # seconds in which the device ran; of several copies of the model, the mean
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
    copies: int = 1,
    on_step: Callable[[Step, float], None] | None = None,
) -> Outcome:
    """Answers all arrivals, which are in order of time, by `copies` of the model, each with these
    limits and with cores of its own.

    As in the engine, up to `steps_ahead` steps are planned before the tokens of the one that runs
    are known. `on_step` is told each step and when it ended; without it, runs of equal steps are
    gone through at once, with the same outcome. Raises RequestError for a request that does not fit
    the limits.
    """
    count = len(arrivals)
    between = Latencies()
    engines = [_Copy(limits, timing, steps_ahead, count, between, on_step) for _ in range(copies)]
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
    return Outcome(
        np.array([arrival.seconds for arrival in arrivals]),
        first,
        finished,
        np.array([arrival.max_tokens for arrival in arrivals]),
        between,
        sum(engine.steps for engine in engines),
        sum(engine.busy for engine in engines) / copies,
        Counters.total([engine.counters for engine in engines]),
    )


def _give(engines: Items["_Copy"], arrival: Arrival) -> int:
    """Chooses a copy for a request as `Replicas` does; its number."""
    if len(engines) == 1:
        engines[0].take(arrival, 0)
        return 0
    new = [engine.new_tokens(arrival) for engine in engines]
    left = [engine.left + tokens for engine, tokens in zip(engines, new, strict=True)]
    number = left.index(min(left))
    engines[number].take(arrival, new[number])
    return number


_WORTH = 2  # equal steps in a row, at least, that are gone through at once
_LONGEST = 1 << 20


def _alike(step: Step, other: Step) -> bool:
    """Whether two steps do the same for the same sequences."""
    return step is other or (
        step.bucket == other.bucket
        and len(step.slots) == len(other.slots)
        and bool((step.serials == other.serials).all() and (step.slots == other.slots).all())
    )


class _Copy:
    """One copy of the model, and up to `most` requests. Arrays have an entry per request, in the
    order in which they were taken."""

    def __init__(
        self,
        limits: SchedulerLimits,
        timing: Callable[[Bucket], float],
        steps_ahead: int,
        most: int,
        between: Latencies,
        on_step: Callable[[Step, float], None] | None,
    ) -> None:
        self.first = np.full(most, np.nan)  # when the first token came
        self.finished = np.full(most, np.nan)
        self.steps, self.busy = 0, 0.0
        self._scheduler = Scheduler(limits)
        self._timing, self._depth, self._on_step = timing, 1 + steps_ahead, on_step
        self._now = self._free = 0.0  # the clock, and when the device has nothing left to do
        self._under_way: deque[tuple[Step, float]] = deque()  # with the end of each
        self._coming: deque[Arrival] = deque()
        self._tokens = np.zeros(most, np.int64)  # that each counts as
        self.left = 0  # tokens of requests that are not finished
        self._taken = 0
        self._latest = np.zeros(most)
        self._between = between
        self._no_tokens = np.zeros(limits.slots, np.int32)

    @property
    def counters(self) -> Counters:
        """What has been done."""
        return self._scheduler.counters

    def new_tokens(self, arrival: Arrival) -> int:
        """How many tokens of a request there are to compute: its prompt may be known in part."""
        size = self._scheduler.limits.block_size
        keys = text_keys(list(arrival.prompt[:-1]), size, ROOT)
        known = max(pool.prefix(keys).length for pool in self._scheduler.pools)
        return len(arrival.prompt) + arrival.max_tokens - known * size

    def take(self, arrival: Arrival, tokens: int) -> None:
        """Queues a request that counts as so many tokens until it is finished."""
        self._coming.append(arrival)
        self._tokens[self._taken] = tokens
        self.left += tokens
        self._taken += 1

    def advance(self, until: float) -> None:
        """Goes on with what happens before `until`; no further request comes before that."""
        while self._now < until:
            self._submit()
            waits = len(self._under_way) < self._depth
            step = self._scheduler.plan() if waits else None
            if step is not None:
                seconds = self._timing(step.bucket)
                self._free = max(self._now, self._free) + seconds
                self.busy += seconds
                self.steps += 1
                self._under_way.append((step, self._free))
            elif self._under_way:
                if self._under_way[0][1] >= until:
                    return
                most = self._equal_steps(until)
                if most >= _WORTH:
                    self._leap(most, until)
                    continue
                step, self._now = self._under_way.popleft()
                self._complete(step)
            elif self._coming and self._coming[0].seconds < until:
                self._now = max(self._now, self._coming[0].seconds)
            else:
                return

    def _submit(self) -> None:
        while self._coming and self._coming[0].seconds <= self._now:
            arrival = self._coming.popleft()
            limit = len(arrival.prompt) + arrival.max_tokens
            self._scheduler.submit(Sequence("", list(arrival.prompt), limit))

    def _equal_steps(self, until: float) -> int:
        """How often the oldest step may be completed and one like the newest be planned before
        anything but an arrival happens, and about how often before that; 0 where it saves
        nothing."""
        under_way = self._under_way
        newest = under_way[-1][0]
        if self._on_step is not None or len(under_way) < self._depth:
            return 0
        if under_way[0][0].bucket != newest.bucket or not newest.is_decode:
            return 0
        # One more than there is time for: rounding is left to the sums of a leap.
        time = self._next_arrival(until) - under_way[0][1]
        most = time / self._timing(newest.bucket) + 1
        if most < _WORTH or not all(_alike(step, newest) for step, _ in under_way):
            return 0
        if np.count_nonzero(np.isnan(self.first[newest.numbers])):
            return 0
        return min(self._scheduler.repeatable(newest), math.ceil(min(most, _LONGEST)))

    def _next_arrival(self, until: float) -> float:
        return min(self._coming[0].seconds, until) if self._coming else until

    def _leap(self, most: int, until: float) -> None:
        """Completes and plans up to so many equal steps that end before the next arrival."""
        under_way = self._under_way
        newest = under_way[-1][0]
        seconds, numbers = self._timing(newest.bucket), newest.numbers
        # Sums one after the other: exactly what step by step would give.
        later = np.add.accumulate([self._free, *[seconds] * most])
        ends = np.array([end for _, end in under_way] + later[1:].tolist())
        times = int(np.searchsorted(ends[:most], self._next_arrival(until)))
        completed, ends = ends[:times], ends[times : times + len(under_way)]
        self._between.add(completed[0] - self._latest[numbers])
        self._between.add(np.diff(completed), len(numbers))
        self._latest[numbers] = completed[-1]
        self._scheduler.repeat(newest, times)
        under_way.clear()
        under_way.extend((newest, float(end)) for end in ends)
        self.steps += times
        self._now, self._free = float(completed[-1]), float(later[times])
        self.busy = float(np.add.accumulate([self.busy, *[seconds] * times])[-1])

    def _complete(self, step: Step) -> None:
        now = self._now
        progress = self._scheduler.complete(step, self._no_tokens[: len(step.slots)])
        rows = progress.rows
        numbers = step.numbers if len(rows) == len(step.slots) else step.numbers[rows]
        # The numbers count arrivals: they are indices.
        later = numbers
        is_first = np.isnan(self.first[numbers])
        if np.count_nonzero(is_first):
            self.first[numbers[is_first]] = now
            later = numbers[~is_first]
        self._between.add(now - self._latest[later])
        self._latest[numbers] = now
        if progress.finished:
            finished = numbers[list(progress.finished)]
            self.finished[finished] = now
            self.left -= int(self._tokens[finished].sum())
        if self._on_step is not None:
            self._on_step(step, now)
