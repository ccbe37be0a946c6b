"""One copy of the model on the simulated clock: the scheduler of the server, and no values."""

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from launch.serving.cache.blocks import Prefix
from launch.serving.scheduler.buckets import Bucket
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.scheduler.scheduler import Scheduler
from launch.serving.scheduler.sequences import Sequence
from launch.serving.scheduler.steps import Step
from launch.serving.virtual.guessing import Guessing
from launch.serving.virtual.latencies import Latencies
from launch.serving.virtual.traffic import Arrival

_WORTH = 2  # equal steps in a row, at least, that are gone through at once
_LONGEST = 1 << 20


def _alike(step: Step, other: Step) -> bool:
    """Whether two steps do the same for the same sequences."""
    return step is other or (
        step.bucket == other.bucket
        and len(step.slots) == len(other.slots)
        and bool((step.serials == other.serials).all() and (step.slots == other.slots).all())
    )


class Pace(NamedTuple):
    """How fast a copy of the model is."""

    seconds: Callable[[Bucket], float]  # of a step without guesses
    steps_ahead: int = 1  # planned before the tokens of the one that runs are known
    guessing: Guessing | None = None


class Coming(NamedTuple):
    """A request, and what another cache hands over of its text before that."""

    arrival: Arrival
    known: Prefix | None = None


class Copy:
    """One copy of the model, and up to `most` requests. Arrays have an entry per request, in the
    order in which they were taken."""

    def __init__(
        self,
        limits: SchedulerLimits,
        pace: Pace,
        most: int,
        between: Latencies,
        *,
        on_step: Callable[[Step, float], None] | None = None,
        on_end: Callable[[Sequence, float], None] | None = None,
    ) -> None:
        """`on_step` is told each step and when it ended, `on_end` each text and when that ended,
        before anything else is planned."""
        self.first = np.full(most, np.nan)  # when the first token came
        self.finished = np.full(most, np.nan)
        self.steps, self.busy = 0, 0.0
        self.scheduler = Scheduler(limits)
        self._pace, self._depth = pace, 1 + pace.steps_ahead
        self._on_step, self._on_end = on_step, on_end
        self._generator = None if pace.guessing is None else pace.guessing.generator()
        self._now = self._free = 0.0  # the clock, and when the device has nothing left to do
        self._under_way: deque[tuple[Step, float]] = deque()  # with the end of each
        self._coming: deque[Coming] = deque()
        self._tokens = np.zeros(most, np.int64)  # that each counts as
        self.left = 0  # tokens of requests that are not finished
        self._taken = 0
        self._latest = np.zeros(most)
        self._between = between
        self._no_tokens = np.zeros(limits.slots, np.int32)

    def new_tokens(self, arrival: Arrival) -> int:
        """How many tokens of a request there are to compute: its prompt may be known in part."""
        known = self.scheduler.known(list(arrival.prompt), arrival.root)
        size = self.scheduler.limits.block_size
        return len(arrival.prompt) + arrival.max_tokens - known.length * size

    def take(self, coming: Coming, tokens: int = 0) -> None:
        """Queues a request that counts as so many tokens until it is finished."""
        self._coming.append(coming)
        self._tokens[self._taken] = tokens
        self.left += tokens
        self._taken += 1

    def advance(self, until: float) -> None:
        """Goes on with what happens before `until`; no further request comes before that."""
        while self._now < until:
            self._submit()
            waits = len(self._under_way) < self._depth
            step = self.scheduler.plan() if waits else None
            if step is not None:
                seconds = self._seconds(step)
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
            elif self._coming and self._coming[0].arrival.seconds < until:
                self._now = max(self._now, self._coming[0].arrival.seconds)
            else:
                return

    def _seconds(self, step: Step) -> float:
        if not step.speculative:
            return self._pace.seconds(step.bucket)
        assert self._pace.guessing is not None
        return self._pace.guessing.seconds(step.bucket)

    def _submit(self) -> None:
        while self._coming and self._coming[0].arrival.seconds <= self._now:
            arrival, known = self._coming.popleft()
            text, speculates = list(arrival.prompt), self._pace.guessing is not None
            if known is not None:
                self.scheduler.adopt(text, arrival.root, known)
            self.scheduler.submit(
                Sequence(
                    "",
                    text,
                    len(text) + arrival.max_tokens,
                    one_by_one=speculates,
                    speculates=speculates,
                    root=arrival.root,
                )
            )

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
        most = time / self._seconds(newest) + 1
        if most < _WORTH or not all(_alike(step, newest) for step, _ in under_way):
            return 0
        if np.count_nonzero(np.isnan(self.first[newest.numbers])):
            return 0
        return min(self.scheduler.repeatable(newest), math.ceil(min(most, _LONGEST)))

    def _next_arrival(self, until: float) -> float:
        return min(self._coming[0].arrival.seconds, until) if self._coming else until

    def _leap(self, most: int, until: float) -> None:
        """Completes and plans up to so many equal steps that end before the next arrival."""
        under_way = self._under_way
        newest = under_way[-1][0]
        seconds, numbers = self._seconds(newest), newest.numbers
        # Sums one after the other: exactly what step by step would give.
        later = np.add.accumulate([self._free, *[seconds] * most])
        ends = np.array([end for _, end in under_way] + later[1:].tolist())
        times = int(np.searchsorted(ends[:most], self._next_arrival(until)))
        completed, ends = ends[:times], ends[times : times + len(under_way)]
        self._between.add(completed[0] - self._latest[numbers])
        self._between.add(np.diff(completed), len(numbers))
        self._latest[numbers] = completed[-1]
        self.scheduler.repeat(newest, times)
        under_way.clear()
        under_way.extend((newest, float(end)) for end in ends)
        self.steps += times
        self._now, self._free = float(completed[-1]), float(later[times])
        self.busy = float(np.add.accumulate([self.busy, *[seconds] * times])[-1])

    def _draw_tokens(self, step: Step) -> np.ndarray:
        """Tokens as a runner gives them."""
        if not step.speculative:
            return self._no_tokens[: len(step.slots)]
        assert self._pace.guessing is not None
        assert self._generator is not None
        return self._pace.guessing.drawn(step, self._generator)

    def _complete(self, step: Step) -> None:
        now = self._now
        progress = self.scheduler.complete(step, self._draw_tokens(step))
        rows = progress.rows
        numbers = step.numbers if len(rows) == len(step.slots) else step.numbers[rows]
        if step.speculative:
            self._note_several(numbers, np.array([len(new) for new in progress.tokens]))
        else:
            self._note(numbers)
        self._latest[numbers] = now
        if progress.finished:
            finished = numbers[list(progress.finished)]
            self.finished[finished] = now
            self.left -= int(self._tokens[finished].sum())
            if self._on_end is not None:
                for index in progress.finished:
                    self._on_end(progress.sequences[index], now)
        if self._on_step is not None:
            self._on_step(step, now)

    def _note(self, numbers: np.ndarray) -> None:
        """Notes that a token of each sequence has come."""
        # The numbers count arrivals: they are indices.
        is_first = np.isnan(self.first[numbers])
        later = numbers
        if np.count_nonzero(is_first):
            self.first[numbers[is_first]] = self._now
            later = numbers[~is_first]
        self._between.add(self._now - self._latest[later])

    def _note_several(self, numbers: np.ndarray, counts: np.ndarray) -> None:
        """Notes that tokens of each sequence have come, which share the time since its last one."""
        is_first = np.isnan(self.first[numbers])
        self.first[numbers[is_first]] = self._now
        since = np.where(is_first, 0.0, (self._now - self._latest[numbers]) / counts)
        self._between.add(np.repeat(since, counts - is_first))
