"""A pytest plugin: which tests of nki-library are run, how long each may take, and what came of it.

A line of JSON for every outcome goes to a file as soon as it is known, so that a run which is cut
off keeps what it has.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Generator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

_MESSAGE = 4_000


class TestTimeoutError(Exception):
    """A test took longer than it may."""

    __test__ = False


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("records")
    group.addoption("--records", type=Path, help="File to which a line is added for each outcome.")
    group.addoption("--sample", type=int, default=0, help="Tests of each file; 0: all.")
    group.addoption("--test-seconds", type=int, default=0, help="CPU seconds of a test; 0: any.")


def evenly(items: Sequence[Any], count: int) -> list[Any]:
    """At most ``count`` of the items, spread evenly over them."""
    if count <= 0 or count >= len(items):
        return list(items)
    return [items[index * len(items) // count] for index in range(count)]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Comes after the marks by which the library leaves tests out."""
    left_out = [item for item in items if item.get_closest_marker("skip")]
    chosen = [item for item in items if not item.get_closest_marker("skip")]
    _write(config, {"collected": len(items), "left_out": len(left_out)})
    items[:] = evenly(chosen, config.getoption("sample"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    seconds = item.config.getoption("test_seconds")
    previous = signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, previous)


def _stop(number: int, frame: FrameType | None) -> None:
    raise TestTimeoutError("the test took longer than --test-seconds allows")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any]:
    report = (yield).get_result()
    if report.when == "call" or report.outcome != "passed":
        seconds = round(report.duration, 2)
        line = {"id": report.nodeid, "outcome": report.outcome, "seconds": seconds}
        _write(item.config, line | ({"message": _message(report)} if report.failed else {}))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _uncollected.append({"id": report.nodeid, "outcome": "failed", "message": _message(report)})


def pytest_sessionfinish(session: pytest.Session) -> None:
    for line in _uncollected:
        _write(session.config, line)


_uncollected: list[dict[str, Any]] = []


def _message(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return (crash.message if crash is not None else str(report.longrepr))[-_MESSAGE:]


def _write(config: pytest.Config, line: dict[str, Any]) -> None:
    records: Path | None = config.getoption("records")
    if records is not None:
        with records.open("a") as file:
            file.write(json.dumps(line) + "\n")
