"""Outputs on their way to the process with the clients, which wakes up, and writes to each client,
once for several steps that are short."""

import threading
import time
from collections.abc import Callable, Sequence

from launch.serving.requests import Output

Send = Callable[[Sequence[Output]], None]

_PATIENCE = 2  # intervals that an output waits at most, if no other step comes


class Outbox:
    """What comes less than `interval` seconds after the last sending waits for the next step, a few
    intervals at most. An answer that begins or ends goes at once, with all that waits."""

    def __init__(self, send: Send, interval: float) -> None:
        self._send, self._interval = send, interval
        self._held: list[Sequence[Output]] = []
        self._next = 0.0  # when the next sending may be
        self._closed = self._sleeps = False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._watch, name="outbox", daemon=True)
        self._thread.start()

    def put(self, outputs: Sequence[Output]) -> None:
        """Takes what a step brought, from any thread."""
        with self._change:
            self._held.append(outputs)
            now = time.monotonic()
            if now >= self._next or any(map(_is_urgent, outputs)):
                self._send_held(now)
            elif self._sleeps:
                self._change.notify()

    def close(self) -> None:
        """Sends the outputs that are left."""
        with self._change:
            self._closed = True
            self._change.notify()
        self._thread.join()

    def _send_held(self, now: float) -> None:
        held, self._held = self._held, []
        self._next = now + self._interval
        self._send(held[0] if len(held) == 1 else _join_outputs(held))

    def _watch(self) -> None:
        """Sends what no step comes for."""
        with self._change:
            while not self._closed:
                self._sleeps = not self._held
                left = self._next + (_PATIENCE - 1) * self._interval - time.monotonic()
                if self._sleeps:
                    self._change.wait()
                elif left > 0:
                    self._change.wait(left)
                else:
                    self._send_held(time.monotonic())
            if self._held:
                self._send_held(time.monotonic())


def _is_urgent(output: Output) -> bool:
    return output.waited is not None or output.finished is not None


def _join_outputs(steps: Sequence[Sequence[Output]]) -> list[Output]:
    """Several steps' outputs, one of each request."""
    by_request: dict[str, list[Output]] = {}
    for outputs in steps:
        for output in outputs:
            by_request.setdefault(output.id, []).append(output)
    return [Output.joined(parts) for parts in by_request.values()]
