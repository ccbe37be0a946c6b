"""Prompts on one mesh, answers on another: keys and values move between them.

The first engine computes a prompt and draws one token. The blocks of the prompt then go to the
second one's cache as a beginning that it knows, so that it computes the last, unfinished block
alone and goes on (Zhong et al., "DistServe", 2024; Patel et al., "Splitwise", 2024).
"""

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from launch.serving.answering import Deliver, Load
from launch.serving.cache.blocks import Prefix
from launch.serving.cache.prefixes import Key
from launch.serving.device_clock import Carrier
from launch.serving.engine import Engine, Runner
from launch.serving.errors import ServingError
from launch.serving.replicas import total_load
from launch.serving.requests import FinishReason, Output, Request
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.scheduler.sequences import root_of


class BlockRunner(Runner, Protocol):
    """A device whose cache can be read and written."""

    def read_blocks(self, blocks: Sequence[int]) -> Any:
        """Keys and values of blocks, when all steps until now have run."""

    def write_blocks(self, blocks: Sequence[int], values: Any) -> None:
        """Puts what `read_blocks` of another runner gave into blocks, before the next step."""


class Disaggregated:
    """Two engines as if they were one."""

    def __init__(
        self,
        prefill: BlockRunner,
        decode: BlockRunner,
        limits: SchedulerLimits,
        deliver: Deliver,
        *,
        max_waiting: int = 1024,
        steps_ahead: int = 1,
        moving: Callable[[int], float] | None = None,
    ) -> None:
        """`moving`, if the devices' time is simulated, gives the seconds that a number of blocks
        takes from one to the other. Both engines share one time line then, and a request arrives
        at the latest moment that either has reached."""
        self.limits = limits
        self._runners = prefill, decode
        self._carrier = None if moving is None else Carrier(moving)
        self._deliver = deliver
        self._lock = threading.Lock()
        self._requests: dict[str, Request] = {}  # whose prompts are under way
        start = partial(Engine, max_waiting=max_waiting, steps_ahead=steps_ahead)
        self._decode = start(decode, limits, deliver, quiet_until=self._next_text)
        self._prefill = start(
            prefill, replace(limits, guesses=0), self._first_tokens, on_horizon=self._decode.wake
        )
        self.moved_blocks = 0

    def __enter__(self) -> "Disaggregated":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, request: Request) -> None:
        """Submits a request, as to an engine."""
        self._decode.check(request)
        with self._lock:
            now = max(self._prefill.now, self._decode.now)
            at = None if self._carrier is None else now
            self._prefill.submit(replace(request, max_tokens=1, min_tokens=0), at=at, arrived=at)
            self._requests[request.id] = request

    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None:
        """Cancels a request, as of an engine."""
        with self._lock:
            self._requests.pop(request_id, None)
            self._prefill.cancel(request_id, reason)
            self._decode.cancel(request_id, reason)

    def load(self) -> Load:
        """The load of both engines together."""
        return total_load([self._prefill.load(), self._decode.load()])

    @property
    def is_idle(self) -> bool:
        """Whether every request has been answered."""
        return not self._requests and self._prefill.is_idle and self._decode.is_idle

    @property
    def failure(self) -> Exception | None:
        """Why one of the engines has stopped."""
        return self._prefill.failure or self._decode.failure

    def close(self) -> None:
        """Closes the engines of prompts and of tokens."""
        self._prefill.close()
        self._decode.close()

    def between_steps(self, action: Callable[[], None]) -> "Future[None]":
        """Refused: nothing is between the steps of two engines."""
        raise ServingError("adapters cannot be loaded while prompts have a mesh of their own")

    def _next_text(self) -> float:
        """The time before which no text comes to the second engine."""
        return math.inf if self._carrier is None else self._prefill.horizon

    def _first_tokens(self, outputs: Sequence[Output]) -> None:
        """Hands requests whose first token has come to the second engine; runs in the first
        engine's thread, before that plans anything else."""
        for output in outputs:
            with self._lock:
                request = self._requests.get(output.id)
                if request is None:
                    continue
                if output.finished != "length" or request.max_tokens == 1:
                    del self._requests[output.id]
                    self._deliver([output])
                    continue
                self._deliver([output._replace(finished=None)])
                try:
                    self._go_on(request, output)
                except ServingError as error:
                    message = str(error)
                    self._deliver([Output(output.id, (), (), "error", 0, message)])
                del self._requests[output.id]

    def _go_on(self, request: Request, output: Output) -> None:
        text = [*request.prompt, *output.tokens]
        root = root_of(request)
        known = self._prefill.known_blocks(text, root)
        at = arrived = None
        if self._carrier is not None and output.times is not None:
            at, arrived = self._carrier.carried(known.length, output.times.ended), output.times[0]
        if known.length:
            values = self._runners[0].read_blocks(known.blocks)
            self._decode.between_steps(lambda: self._lay_down(text, root, known, values), at=at)
        self._decode.submit(
            replace(
                request,
                prompt=text,
                max_tokens=request.max_tokens - 1,
                min_tokens=0,  # the grammar counts them
                answered=1,
                prompt_logprobs=None,
            ),
            at=at,
            arrived=arrived,
        )

    def _lay_down(self, text: Sequence[int], root: Key, known: Prefix, values: Any) -> None:
        """Runs in the second engine's thread. Without room the prompt is computed again."""
        places = self._decode.adopt_blocks(text, root, known)
        if places is not None:
            self._runners[1].write_blocks(places, values)
            self.moved_blocks += len(places)
