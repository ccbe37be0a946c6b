"""What a parser may use for any input, however wrong: a second of CPU and 100 MB of memory."""

from __future__ import annotations

import contextlib
import resource
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

SECONDS = 1.0
BYTES = 100 << 20
_PATIENCE = 10.0
"""Seconds of CPU after which a parser that does not come back is stopped."""


class TooSlowError(BaseException):
    """The parser did not come back; no ``except Exception`` may take it."""


def assert_within_limits(read: Callable[[], Any]) -> None:
    """Fails if the call takes longer, or wants more memory, than a parser may.

    Time is that of the thread's work, so other load on the machine does not count. A call that
    takes long is made once more, as the first one in a process may load modules and fill tables.
    Memory beyond the limit is refused to the process, so that a parser raises ``MemoryError``.
    """
    seconds = _cpu_seconds(read)
    if seconds > SECONDS:
        seconds = _cpu_seconds(read)
    assert seconds <= SECONDS, f"{seconds:.1f} s"


def _cpu_seconds(read: Callable[[], Any]) -> float:
    with _limited():
        begin = time.thread_time()
        read()
        return time.thread_time() - begin


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TooSlowError

    handler = signal.signal(signal.SIGVTALRM, stop)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + BYTES, hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, _PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGVTALRM, handler)


def _address_space() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
