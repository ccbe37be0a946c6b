"""What a parser may use for any input, however wrong: a second of CPU and 100 MB of memory."""

from __future__ import annotations

import contextlib
import resource
import signal
import time
from collections.abc import Iterator
from typing import Any

SECONDS = 1.0
BYTES = 100 << 20
_PATIENCE = 10.0
"""Seconds of CPU after which a parser that does not come back is stopped."""


class TooSlowError(BaseException):
    """The parser did not come back; no ``except Exception`` may take it."""


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Fails if the body takes longer, or wants more memory, than a parser may.

    Time is that of the thread's work, so other load on the machine does not count. Memory beyond
    the limit is refused to the process, so that a parser raises ``MemoryError``.
    """

    def stop(*_: Any) -> None:
        raise TooSlowError

    handler = signal.signal(signal.SIGVTALRM, stop)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + BYTES, hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, _PATIENCE)
    began = time.thread_time()
    try:
        yield
    finally:
        took = time.thread_time() - began
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGVTALRM, handler)
    assert took <= SECONDS, f"{took:.1f} s"


def _address_space() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
