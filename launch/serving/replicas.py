"""Several engines on one model, each on cores of its own, as if they were one."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from launch.errors import LaunchError
from launch.serving.answering import Deliver, Load
from launch.serving.engine import Engine, Runner
from launch.serving.errors import RequestError, ServingError
from launch.serving.requests import FinishReason, Output, Request
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.scheduler.steps import Counters


class Replicas:
    """Each request goes where the fewest tokens are left to compute, its own among them: those of
    its prompt that an engine's cache holds already do not count. A queue that is full, and an
    engine that has stopped, are passed over."""

    def __init__(
        self,
        runners: Sequence[Runner],
        limits: SchedulerLimits,
        deliver: Deliver,
        *,
        max_waiting: int = 1024,
        steps_ahead: int = 1,
    ) -> None:
        self.limits = limits
        self._deliver = deliver
        self._lock = threading.Lock()
        self._owners: dict[str, tuple[int, int]] = {}  # engine and tokens of each request
        self._left = [0] * len(runners)
        self._engines = [
            Engine(
                runner,
                limits,
                partial(self._pass_on, number),
                max_waiting=max_waiting,
                steps_ahead=steps_ahead,
            )
            for number, runner in enumerate(runners)
        ]

    def __enter__(self) -> "Replicas":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, request: Request) -> None:
        """Submits a request, as to an engine."""
        tokens = len(request.prompt) + request.max_tokens
        with self._lock:
            new = [tokens - engine.cached(request) for engine in self._engines]
            order = sorted(range(len(new)), key=lambda number: self._left[number] + new[number])
            refused: LaunchError | None = None
            for number in order:
                try:
                    self._engines[number].submit(request)
                except RequestError:
                    raise
                except LaunchError as error:  # it is full, or has stopped
                    refused = refused or error
                    continue
                self._owners[request.id] = number, new[number]
                self._left[number] += new[number]
                return
        assert refused is not None
        raise refused

    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None:
        """Cancels a request, as of an engine."""
        with self._lock:
            number = self._forget(request_id)
        if number is not None:
            self._engines[number].cancel(request_id, reason)

    def load(self) -> Load:
        """The load of all engines together."""
        loads = [engine.load() for engine in self._engines]
        return total_load(loads)

    @property
    def is_idle(self) -> bool:
        """Whether every request has been answered."""
        return all(engine.is_idle for engine in self._engines)

    @property
    def failure(self) -> Exception | None:
        """Why the last engine that was left has stopped."""
        failures = [engine.failure for engine in self._engines]
        return failures[-1] if all(failures) else None

    def close(self) -> None:
        """Closes all engines."""
        for engine in self._engines:
            engine.close()

    def between_steps(self, action: Callable[[], None]) -> "Future[None]":
        """Refused: nothing is between the steps of several engines."""
        raise ServingError("adapters cannot be loaded into several replicas: use --mesh=data=1")

    def _pass_on(self, number: int, outputs: Sequence[Output]) -> None:
        with self._lock:
            for output in outputs:
                if output.finished is not None:
                    self._forget(output.id)
        self._deliver(outputs)

    def _forget(self, request_id: str) -> int | None:
        """The engine of a request that is over."""
        number, tokens = self._owners.pop(request_id, (None, 0))
        if number is not None:
            self._left[number] -= tokens
        return number


def total_load(loads: Sequence[Load]) -> Load:
    """The sum of all entries."""
    return Load(
        running=sum(load.running for load in loads),
        waiting=sum(load.waiting for load in loads),
        slots=sum(load.slots for load in loads),
        blocks_held=sum(load.blocks_held for load in loads),
        blocks=sum(load.blocks for load in loads),
        counters=Counters.total([load.counters for load in loads]),
        device_seconds=max(load.device_seconds for load in loads),
    )
