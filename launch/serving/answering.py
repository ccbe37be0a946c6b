"""What a server needs of an engine, wherever it runs."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from launch.serving.requests import FinishReason, Output, Request
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.scheduler.steps import Counters

Deliver = Callable[[Sequence[Output]], None]


class Answering(Protocol):
    """What a server needs of an engine, or of several."""

    limits: SchedulerLimits

    @property
    def failure(self) -> Exception | None:
        """Why nothing is answered any more."""

    @property
    def is_idle(self) -> bool:
        """Whether every request has been answered."""

    def submit(self, request: Request) -> None:
        """Queues a request; its outputs are delivered from now on."""

    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None:
        """Ends a request early, if it is under way; nothing more is delivered for it."""

    def between_steps(self, action: Callable[[], None]) -> Future[None]:
        """Does something before the next step is planned."""

    def close(self) -> None:
        """Ends; requests that are left get an error."""

    def load(self) -> "Load":
        """The load: how busy what answers is."""


class Load(NamedTuple):
    """The engine at one moment."""

    running: int  # sequences with a place in the batch
    waiting: int
    slots: int
    blocks_held: int
    blocks: int
    counters: Counters
    lengths: Sequence[int] = ()  # of the texts in the slots, in tokens; 0 = nobody has it
    device_seconds: float = 0.0  # of the device's clock, if its time is simulated
