"""Runs one file of JAX's tests in this process and records every test as it starts and ends.

Started as a script by suite_runner, so that nothing of this project is imported here:
`python -P suite_worker.py CHECKOUT FILE RECORD [TAG …]`. Upstream runs some tests only on devices
with a tag such as `cpu`; the device under test gets the TAGs besides its own name. RECORD holds one
JSON object per line:

  {"event": "collected", "count": n}                          number of tests the file has
  {"event": "start", "id": ...}                               a test begins
  {"event": "outcome", "id": ..., "outcome": passed | failed | skipped, "error": line,
   "seconds": s}                                              it has ended
  {"event": "end"}                                            the file has no more tests

Tests with an outcome already in RECORD are not run again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

_SEVERITY = {"passed": 0, "skipped": 1, "failed": 2}
_ERROR_CHARACTERS = 300
_ORDERLY = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


def first_error_line(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The exception of a failed report, or the reason of a skipped one, on one line."""
    if isinstance(report.longrepr, tuple):
        text = report.longrepr[2]
    else:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash is not None else str(report.longrepr)
    return " ".join(text.split())[:_ERROR_CHARACTERS]


class Recorder:
    """A pytest plugin that appends to `record` and leaves out what it already holds."""

    def __init__(self, record: Path) -> None:
        lines = record.read_text().splitlines() if record.exists() else []
        events = [json.loads(line) for line in lines]
        self._done = {event["id"] for event in events if event["event"] == "outcome"}
        self._file = record.open("a", buffering=1)
        self._outcome = "passed"
        self._error = ""
        self._started = 0.0
        self._collection_failed = False

    def _write(self, event: str, **fields: Any) -> None:
        self._file.write(json.dumps({"event": event, **fields}) + "\n")

    def _take(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if _SEVERITY[report.outcome] > _SEVERITY[self._outcome]:
            self._outcome, self._error = report.outcome, first_error_line(report)

    def _finish(self, identity: str) -> None:
        seconds = round(time.monotonic() - self._started, 3)
        fields = {"outcome": self._outcome, "error": self._error, "seconds": seconds}
        self._write("outcome", id=identity, **fields)

    def _begin(self) -> None:
        self._outcome, self._error, self._started = "passed", "", time.monotonic()

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        self._write("collected", count=len(items))
        config.hook.pytest_deselected(items=[i for i in items if i.nodeid in self._done])
        items[:] = [item for item in items if item.nodeid not in self._done]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            self._collection_failed = self._collection_failed or report.failed
            self._begin()
            self._take(report)
            self._finish(f"{report.nodeid}::<collection>")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._begin()
        self._write("start", id=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._take(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._finish(nodeid)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus in _ORDERLY or self._collection_failed:
            self._write("end")


def add_device_tags(tags: Sequence[str]) -> None:
    """Makes JAX's test helpers take the device under test for one with `tags` too."""
    from jax._src import test_util  # imported only where a tag is wanted: a heavy module

    own = test_util._get_device_tags
    test_util._get_device_tags = lambda: own() | set(tags)


def main(arguments: Sequence[str]) -> int:
    checkout, name, record, *tags = arguments
    if tags:
        add_device_tags(tags)
    tests = Path(checkout).resolve() / "tests"
    sys.argv = [name]  # absl flags of the tests read it
    # capture=sys lets the last words of dying C++ code through.
    flags = ["-q", "--tb=short", "--capture=sys", "-p", "no:cacheprovider", "-p", "no:xdist"]
    settings = ["-c", str(tests.parent / "pyproject.toml"), "--rootdir", str(tests)]
    recorder = Recorder(Path(record))
    return int(pytest.main([*flags, *settings, str(tests / name)], plugins=[recorder]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
