"""Stop requests that wait for the current step, up to a limit."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NoReturn

from launch import INTERRUPTED
from launch.program import say

GRACE_SECONDS = 120.0  # EC2 announces the end of a Spot instance two minutes ahead

_ASKING = {
    signal.SIGINT: "stopping after this step; press Ctrl-C again to stop at once without saving",
    signal.SIGTERM: "SIGTERM: saving after this step, within {:g} seconds",
}


@dataclass
class StopRequest:
    """A request to stop; `signal_number` is 0 until there is one."""

    signal_number: int = 0

    @property
    def exit_code(self) -> int:
        """The shell's convention: 130 after SIGINT, 143 after SIGTERM."""
        return 128 + self.signal_number


@contextmanager
def stop_requests(grace_seconds: float = GRACE_SECONDS) -> Iterator[StopRequest]:
    """Within the block, SIGINT and SIGTERM only record a request to stop, so that the current step
    is completed.

    A second SIGINT ends the process at once, and so does the end of `grace_seconds` after
    SIGTERM: a checkpoint that is incomplete at that time is discarded. A thread listens, since the
    main one may be compiling for minutes. Main thread only.
    """
    request = StopRequest()
    ours, pythons = socket.socketpair()
    pythons.setblocking(False)  # as set_wakeup_fd wants it
    listener = threading.Thread(
        target=_listen, args=(ours, request, grace_seconds), name="stop requests", daemon=True
    )
    listener.start()
    previous = {number: signal.signal(number, lambda *_: None) for number in _ASKING}
    previous_wakeup = signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
    try:
        yield request
    finally:
        signal.set_wakeup_fd(previous_wakeup)
        for number, handler in previous.items():
            signal.signal(number, handler)
        pythons.close()  # ends the listener
        listener.join()
        ours.close()


def _listen(signals: socket.socket, request: StopRequest, grace_seconds: float) -> None:
    """Until the other end is closed: notes the first signal, and ends the process if it must."""
    with suppress(TimeoutError):
        while numbers := signals.recv(1):
            if request.signal_number and numbers[0] == signal.SIGINT:
                _end("interrupted; earlier checkpoints are complete", INTERRUPTED)
            if request.signal_number or numbers[0] not in _ASKING:
                continue
            request.signal_number = numbers[0]
            say("\n" + _ASKING[signal.Signals(numbers[0])].format(grace_seconds))
            if numbers[0] == signal.SIGTERM:
                signals.settimeout(grace_seconds)
        return
    _end(
        f"the last step was not saved within {grace_seconds:g} seconds after SIGTERM; earlier "
        "checkpoints are complete",
        request.exit_code,
    )


def _end(message: str, exit_code: int) -> NoReturn:
    """Ends the process without its exit handlers, which would wait for what is being saved."""
    say(f"\n{message}")
    sys.stdout.flush()
    os._exit(exit_code)
