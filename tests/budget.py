"""The CPU time that a test may use.

It is that of this process, of those that it started and has waited for, and of forked ones. Unlike
time on the clock it hardly grows on a busy machine: by half, as caches are shared.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests import forked

SET_UP_SECONDS = 90.0
"""Of CPU time, for what a test needs; the first test of a file makes what the others share."""
TEST_SECONDS = 45.0
"""Of CPU time, for a test that is not marked as slow: some 12 on a quiet machine. A slower one (by
1.8 times, as measured) that did other work besides took 32 for such a test."""


def cpu_seconds() -> float:
    """Used so far."""
    times = os.times()
    of_children = times.children_user + times.children_system + forked.SERVERS.cpu_seconds
    return times.user + times.system + of_children


@contextmanager
def held(seconds: float) -> Iterator[None]:
    """Fails the test if a block that ends uses more CPU time than that."""
    begin = cpu_seconds()
    yield
    used = cpu_seconds() - begin
    if used > seconds:
        pytest.fail(
            f"{used:.1f} s of CPU time, and {seconds:.0f} are allowed: make the program or the "
            "model smaller, share what is compiled, or mark the test as slow",
            pytrace=False,
        )
