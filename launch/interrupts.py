"""Stop requests that wait for the current step."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from launch.program import say


@dataclass
class StopRequest:
    """`signal_number` is 0 until somebody asks to stop."""

    signal_number: int = 0

    @property
    def exit_code(self) -> int:
        """The shell's convention: 130 after SIGINT, 143 after SIGTERM."""
        return 128 + self.signal_number


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Within the block SIGINT and SIGTERM only note the wish to stop, so that no step is torn.

    A second SIGINT raises KeyboardInterrupt at once. Main thread only.
    """
    request = StopRequest()

    def note(number: int, frame: FrameType | None) -> None:
        if request.signal_number and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal_number = number
        say("\nstopping after this step; press Ctrl-C again to stop at once without saving")

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
