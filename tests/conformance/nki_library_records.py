"""A pytest plugin: which tests of nki-library are run, how long each may take, and what came of it.

A line of JSON for every outcome goes to a file as soon as it is known, so that a run which is cut
off keeps what it has.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Generator, Mapping, Sequence
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
    group.addoption("--only", type=Path, help="File with the tests to run, one per line.")
    group.addoption("--scratch", type=Path, help="Folder that is emptied behind each test.")
    group.addoption("--test-seconds", type=int, default=0, help="CPU seconds of a test; 0: any.")
    group.addoption("--file-seconds", type=int, default=0, help="CPU seconds of a file; 0: any.")


def evenly(items: Sequence[Any], count: int) -> list[Any]:
    """At most ``count`` of the items, spread evenly over them."""
    if count <= 0 or count >= len(items):
        return list(items)
    return [items[index * len(items) // count] for index in range(count)]


def spread_first(items: Sequence[Any]) -> list[Any]:
    """The items in such an order that any number of the first ones is spread evenly over them."""
    width = max(len(items) - 1, 1).bit_length()
    places = (int(f"{index:0{width}b}"[::-1], 2) for index in range(1 << width))
    return [items[place] for place in places if place < len(items)]


def is_too_large(error: BaseException | None) -> bool:
    """Whether a test took more time or memory than it may, by what it raised and what that came
    of."""
    while error is not None:
        is_torch = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
        if is_torch or isinstance(error, TestTimeoutError | MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Records(config))


class Records:
    """The hooks of one session."""

    def __init__(self, config: pytest.Config) -> None:
        self._file: Path | None = config.getoption("records")
        self._only: Path | None = config.getoption("only")
        self._scratch: Path | None = config.getoption("scratch")
        self._sample: int = config.getoption("sample")
        self._seconds: int = config.getoption("test_seconds")
        self._budget: int = config.getoption("file_seconds")
        self._begin = time.process_time()
        self._session: pytest.Session | None = None
        self._too_large: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Comes after the marks by which the library leaves tests out."""
        chosen = [item for item in items if not item.get_closest_marker("skip")]
        done = self._done()
        if done is None:
            self._add({"collected": len(items), "left_out": len(items) - len(chosen)})
        if self._only is not None:
            listed = set(self._only.read_text().splitlines())
            chosen = [item for item in chosen if item.nodeid in listed]
        chosen = spread_first(chosen) if self._budget else evenly(chosen, self._sample)
        items[:] = [item for item in chosen if item.nodeid not in (done or ())]
        self._begin = time.process_time()

    def _done(self) -> set[str] | None:
        """The tests that an earlier run has recorded; None: there was none."""
        if self._file is None or not self._file.exists():
            return None
        lines = self._file.read_text().splitlines()
        return {json.loads(line).get("id") for line in lines} if lines else None

    def pytest_runtest_logfinish(self) -> None:
        """Ends the session when the file has had its time; tests leave gigabytes of arrays."""
        for folder in self._scratch.glob("out-*") if self._scratch is not None else ():
            shutil.rmtree(folder, ignore_errors=True)
        spent = time.process_time() - self._begin
        if self._budget and spent > self._budget and self._session is not None:
            self._session.shouldstop = "the file has had its time"

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, None]:
        previous = signal.signal(signal.SIGPROF, _stop)
        signal.setitimer(signal.ITIMER_PROF, self._seconds)
        outcome = yield
        if outcome.excinfo is not None and is_too_large(outcome.excinfo[1]):
            self._too_large.add(item.nodeid)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            outcome = "too large" if report.nodeid in self._too_large else report.outcome
            seconds = round(report.duration, 2)
            line = {"id": report.nodeid, "outcome": outcome, "seconds": seconds}
            self._add(line | ({"message": _message(report)} if report.failed else {}))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            line = {"id": report.nodeid, "outcome": "failed", "message": _message(report)}
            self._add(line)

    def _add(self, line: Mapping[str, Any]) -> None:
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(json.dumps(line) + "\n")


def _stop(number: int, frame: FrameType | None) -> None:
    raise TestTimeoutError("the test took longer than --test-seconds allows")


def _message(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return (crash.message if crash is not None else str(report.longrepr))[-_MESSAGE:]
