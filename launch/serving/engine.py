"""The loop between scheduler and device: requests in, outputs out, for any number of clients.

One thread owns scheduler and device. Others hand it requests (`submit`, `cancel`), and `deliver` is
called in it with what each step brought. While the device is at one step the next one is planned
and handed over, so that it never waits for the host.
"""

import heapq
import itertools
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from launch.serving.answering import Deliver, Load
from launch.serving.cache.blocks import Prefix
from launch.serving.cache.prefixes import Key
from launch.serving.device_clock import DeviceClock
from launch.serving.errors import CrowdedError, OverloadedError, RequestError, ServingError
from launch.serving.requests import FinishReason, Logprobs, Output, Request, Times
from launch.serving.runner.arrays import Scores
from launch.serving.sampling.draw import Drawn
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.scheduler.scheduler import Scheduler
from launch.serving.scheduler.sequences import Sequence, root_of
from launch.serving.scheduler.slots import Slots
from launch.serving.scheduler.steps import Step


class Result(Protocol):
    """A step on its way."""

    @property
    def seconds(self) -> float | None:
        """Seconds that the step takes on the device; None if these are not simulated."""

    def wait(self) -> Drawn:
        """NumPy arrays of its rows, once the device is done."""

    def scores(self) -> Scores | None:
        """NumPy arrays of its rows, if a sequence wants them."""


class Runner(Protocol):
    """A device as the engine needs it."""

    def reset(self) -> None:
        """Forgets who had the slots: an engine begins."""

    def run(self, step: Step, slots: Slots) -> Result:
        """Starts the programs of a step on the device."""

    def worth_guessing(self, sequence: Sequence) -> bool:
        """Whether there is a guess of what follows in a text."""


@dataclass(frozen=True)
class StepRecord:
    """A step of an engine that is over."""

    step: Step
    seconds: float  # from its plan to its tokens
    planning_seconds: float  # of them: until it was handed to the device


class UnderWay(NamedTuple):
    """A step that the device has."""

    step: Step
    result: Result
    began: float  # seconds of this machine's clock
    planning_seconds: float
    ends: float | None  # seconds of the device's clock, if its time is simulated


class Later(NamedTuple):
    """An action for a time of the device's clock; of two at the same time, the first to come goes
    first."""

    at: float  # seconds
    number: int
    action: Callable[[], None]


class Engine:
    """Runs until `close`; usable as a context manager.

    If the device's time is simulated, what is given a time `at` happens then on its clock, and
    `quiet_until` tells before which time nothing comes from another engine: no step is planned, and
    the clock goes no further, until that is later. Whoever tells so calls `wake` when it changes.
    """

    def __init__(
        self,
        runner: Runner,
        limits: SchedulerLimits,
        deliver: Deliver,
        *,
        max_waiting: int = 1024,
        steps_ahead: int = 1,
        on_step: Callable[[StepRecord], None] = lambda record: None,
        quiet_until: Callable[[], float] = lambda: math.inf,
        on_horizon: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_horizon` is called whenever `horizon` has changed."""
        self.limits = limits
        self._runner, self._deliver, self._on_step = runner, deliver, on_step
        self._max_waiting, self._depth = max_waiting, 1 + steps_ahead
        runner.reset()
        self._scheduler = Scheduler(limits, runner.worth_guessing)
        self._clock = DeviceClock()
        self._sequences: dict[str, Sequence] = {}
        self._under_way = Counter[str]()  # of each client
        self._inbox: deque[Callable[[], None]] = deque()
        self._later: list[Later] = []  # a heap
        self._numbers = itertools.count()
        self.horizon = math.inf  # seconds of the device's clock: no step ends before
        self._quiet_until, self._on_horizon = quiet_until, on_horizon
        self._change = threading.Condition()
        self._closing = False
        self._waiting = 0  # submitted, and not yet in a batch
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(
        self, request: Request, *, at: float | None = None, arrived: float | None = None
    ) -> None:
        """Queues a request; its outputs are delivered from now on, and count from when it has
        `arrived` on the device's clock, if not now.

        Raises RequestError for one that could never be computed, CrowdedError if its client has as
        many in the queue as it may, ServingError if the engine has stopped.
        """
        self.check(request)
        with self._change:
            self._check_alive()
            client = request.client
            waiting = self._under_way[client] - self._scheduler.slots.held[client]
            if waiting >= self._max_waiting:
                raise CrowdedError(
                    f"{waiting} requests of this client are already waiting, the most that the "
                    "queue holds. Try again later."
                )
            if request.id in self._sequences:
                raise RequestError(f"the request {request.id!r} is already in progress")
            speculation = self.limits.guesses > 0
            sequence = self._sequences[request.id] = Sequence.of(request, speculation=speculation)
            sequence.queued = time.perf_counter()
            self._under_way[client] += 1
            self._put(lambda: self._admit(sequence, arrived), at)

    def check(self, request: Request) -> None:
        """Raises RequestError for a request that could never be computed."""
        self.limits.check_request(request)

    def cached(self, request: Request) -> int:
        """Counts the tokens of a prompt that lie in the cache at the moment."""
        known = self._scheduler.known(request.prompt, root_of(request))
        return known.length * self.limits.block_size

    def known_blocks(self, text: Items[int], root: Key) -> Prefix:
        """The scheduler's known blocks, which stay what they are until the next step is planned."""
        return self._scheduler.known(text, root)

    def adopt_blocks(self, text: Items[int], root: Key, prefix: Prefix) -> list[int] | None:
        """Takes blocks as `Scheduler.adopt` does; for the engine's thread."""
        return self._scheduler.adopt(text, root, prefix)

    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None:
        """Ends a request early, if it is under way; nothing more is delivered for it."""
        with self._change:
            sequence = self._drop(request_id)
            if sequence is not None:
                self._inbox.append(lambda: self._scheduler.end(sequence, reason))
                self._change.notify()

    def _drop(self, request_id: str) -> Sequence | None:
        """Forgets a request, if it is under way."""
        with self._change:
            sequence = self._sequences.pop(request_id, None)
            if sequence is not None:
                self._under_way -= Counter((sequence.client,))
        return sequence

    def between_steps(
        self, action: Callable[[], None], *, at: float | None = None
    ) -> "Future[None]":
        """Does something before the next step is planned, in the engine's thread."""
        done: Future[None] = Future()

        def act() -> None:
            try:
                action()
            except Exception as error:  # it is whoever asked for it who must know
                done.set_exception(error)
            else:
                done.set_result(None)

        with self._change:
            self._check_alive()
            self._put(act, at)
        return done

    def wake(self) -> None:
        """Looks again whether the device's clock may go on."""
        with self._change:
            self._change.notify()

    @property
    def now(self) -> float:
        """Seconds of the device's clock."""
        return self._clock.now

    def load(self) -> Load:
        """Tells how busy the engine is."""
        scheduler = self._scheduler
        return Load(
            running=scheduler.running,
            waiting=scheduler.waiting + len(self._inbox),
            slots=self.limits.slots,
            blocks_held=sum(pool.held for pool in scheduler.pools),
            blocks=self.limits.blocks,
            counters=scheduler.counters,
            lengths=scheduler.slots.length.tolist(),
            device_seconds=self._clock.now,
        )

    @property
    def is_idle(self) -> bool:
        """Whether every request has been answered."""
        return not self._sequences

    def close(self) -> None:
        """Ends the loop after the steps that are under way; requests that are left get an error."""
        with self._change:
            self._closing = True
            self._change.notify()
        self._thread.join()

    def _check_alive(self) -> None:
        if self.failure is not None:
            raise ServingError(f"the engine has stopped: {self.failure}")
        if self._closing:
            raise OverloadedError("the server is shutting down: no new requests are accepted")

    def _loop(self) -> None:
        try:
            self._run()
        except Exception as error:  # whatever the device says, clients must be told
            self.failure = error
        with self._change:
            left = list(self._sequences.values())
            self._sequences.clear()
            self._closing = True
        self._tell_horizon(math.inf)
        message = str(self.failure) if self.failure else "the server has ended"
        self._deliver([_error(sequence, message) for sequence in left])

    def _put(self, action: Callable[[], None], at: float | None) -> None:
        """Puts an action into the inbox of the engine's thread; the caller holds the lock."""
        if at is None:
            self._inbox.append(action)
        else:
            self.horizon = min(self.horizon, at)
            heapq.heappush(self._later, Later(at, next(self._numbers), action))
        self._change.notify()

    def _admit(self, sequence: Sequence, arrived: float | None) -> None:
        sequence.arrived = self._clock.now if arrived is None else arrived
        if sequence.finished is None:  # it may have been cancelled before its time
            self._scheduler.submit(sequence)

    def _run(self) -> None:
        under_way: deque[UnderWay] = deque()
        while True:
            with self._change:
                while not (self._take(under_way) or self._closing):
                    self._change.wait()
            if self._closing:
                break
            if len(under_way) < self._depth:
                began = time.perf_counter()
                step = self._scheduler.plan()
                if step is not None:
                    result = self._runner.run(step, self._scheduler.slots)
                    planning = time.perf_counter() - began
                    ends = None if result.seconds is None else self._clock.begin(result.seconds)
                    under_way.append(UnderWay(step, result, began, planning, ends))
                    _note_begin(under_way[-1])
                    self._tell_horizon(under_way[0].ends)
                    continue
            if under_way:
                self._finish(under_way.popleft())
                self._tell_horizon(under_way[0].ends if under_way else None)

    def _take(self, under_way: deque[UnderWay]) -> bool:
        """Does what has come; whether the engine can go on."""
        while self._inbox:
            self._inbox.popleft()()
        while self._later and self._later[0].at <= self._clock.now:
            heapq.heappop(self._later).action()
        idle = not under_way and self._scheduler.is_idle
        if idle and not self._later:
            self._tell_horizon(math.inf)
            return False
        moment = self._later[0].at if idle else self._clock.now
        if len(under_way) < self._depth and self._quiet_until() <= moment:
            return False
        if not idle:
            return True
        self._clock.reach(moment)
        return self._take(under_way)

    def _tell_horizon(self, moment: float | None) -> None:
        if moment is not None and moment != self.horizon:
            self.horizon = moment
            self._on_horizon()

    def _finish(self, done: UnderWay) -> None:
        step, drawn = done.step, done.result.wait()
        if done.ends is not None:
            self._clock.reach(done.ends)
        _note_scores(step, done.result.scores())
        progress = self._scheduler.complete(step, np.asarray(drawn.tokens))
        outputs = []
        rows = progress.rows.tolist()
        for index, (sequence, new) in enumerate(
            zip(progress.sequences, progress.tokens, strict=True)
        ):
            # A grammar sees the last token too: another engine may go on with the text.
            error = ""
            try:
                finished = self._end_of_grammar(sequence) or progress.finished.get(index)
            except RequestError as fault:
                finished, error = "error", str(fault)
                self._scheduler.end(sequence, finished)
            if sequence.id in self._sequences:
                if error:
                    outputs.append(_error(sequence, error))
                else:
                    outputs.append(_output(sequence, new, drawn, rows[index], finished, done.ends))
            if finished is not None:
                self._drop(sequence.id)
        self._on_step(StepRecord(step, time.perf_counter() - done.began, done.planning_seconds))
        if outputs:
            self._deliver(outputs)

    def _end_of_grammar(self, sequence: Sequence) -> FinishReason | None:
        """Ends an answer whose grammar lets nothing follow. Raises RequestError as `accept`."""
        request = sequence.request
        if request is None or request.grammar is None:
            return None
        if request.grammar.accept(sequence.tokens[-1]):
            return None
        self._scheduler.end(sequence, "stop")
        return "stop"


def _output(
    sequence: Sequence,
    new: Items[int],
    drawn: Drawn,
    row: int,
    finished: FinishReason | None,
    ends: float | None,
) -> Output:
    is_first = len(sequence.tokens) - sequence.prompt_length == len(new)
    return Output(
        sequence.id,
        new,
        () if drawn.logprobs is None else _logprobs(sequence, drawn, row),
        finished,
        sequence.cached_tokens,
        "",
        None if ends is None else Times(sequence.arrived, ends, ends),
        _prompt_logprobs(sequence) if is_first else (),
        sequence.waited if is_first else None,
    )


def _logprobs(sequence: Sequence, drawn: Drawn, row: int) -> Items[Logprobs]:
    """Returns the logprobs of the token that a row drew, if they are wanted."""
    request = sequence.request
    if request is None or request.sampling.logprobs is None:
        return ()
    assert drawn.logprobs is not None
    assert drawn.top_tokens is not None
    assert drawn.top_logprobs is not None
    count = request.sampling.logprobs
    return [
        Logprobs(
            float(drawn.logprobs[row]),
            drawn.top_tokens[row, :count].tolist(),
            drawn.top_logprobs[row, :count].tolist(),
        )
    ]


def _note_begin(begun: UnderWay) -> None:
    """Keeps how long the texts have waited whose first step this is."""
    for sequence in () if begun.step.is_decode else begun.step.sequences:
        if sequence.waited is not None:
            continue
        if begun.ends is None or begun.result.seconds is None:
            sequence.waited = begun.began - sequence.queued
        else:
            sequence.waited = begun.ends - begun.result.seconds - sequence.arrived


def _note_scores(step: Step, scores: Scores | None) -> None:
    """Keeps what the model says of the tokens of prompts."""
    if scores is None:
        return
    for row, sequence in enumerate(step.sequences):
        if not sequence.scores_prompt:
            continue
        assert sequence.request is not None
        first, most = 1 + int(step.starts[row]), sequence.request.prompt_logprobs
        count = min(int(step.counts[row]), sequence.prompt_length - first)
        for place in range(count):
            sequence.prompt_logprobs[first + place] = Logprobs(
                float(scores.logprobs[row, place]),
                scores.top_tokens[row, place, :most].tolist(),
                scores.top_logprobs[row, place, :most].tolist(),
                int(scores.ranks[row, place]),
            )


def _prompt_logprobs(sequence: Sequence) -> Items[Logprobs | None]:
    """Returns the logprobs of the prompt's tokens but the first, if they are wanted."""
    if not sequence.scores_prompt:
        return ()
    return [sequence.prompt_logprobs.get(place) for place in range(sequence.prompt_length)]


def _error(sequence: Sequence, message: str) -> Output:
    return Output(sequence.id, (), (), "error", sequence.cached_tokens, message)
