"""Runs tests of another project in this process and records every test as it starts and ends.

Started as a script by suite_runner: `python -P suite_worker.py JOB`. JOB is a JSON file with the
fields of suite_runner's `Unit` and `Run`, and the path of the record, which holds one JSON object
per line:

  {"event": "collected", "count": n}                          number of tests there are
  {"event": "start", "id": ...}                               a test begins
  {"event": "outcome", "id": ..., "outcome": passed | failed | skipped, "error": line,
   "seconds": s, "types": [...]}                              it has ended
  {"event": "end", "sample": [k, n]}                          there are no more tests in this part

Tests with an outcome already in the record are not run again. `types` are the element types of the
programs that the test compiled, of those that no engine of a NeuronCore has.
"""

from __future__ import annotations

import json
import re
import sys
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

_SEVERITY = {"passed": 0, "skipped": 1, "failed": 2}
_ERROR_CHARACTERS = 300
_ORDERLY = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)

_ATTRIBUTE_DATA = re.compile(r" = (array<|dense<[^>]*> : tensor<[^>]*>)")
_FOREIGN_TYPE = re.compile(r"tensor<[0-9x?]*(complex<f\d+>|f64|u?i64)")


def in_sample(identity: str, part: int, parts: int) -> bool:
    """Whether the test belongs to part ``part`` of ``parts``, counted from 1."""
    return zlib.crc32(identity.encode()) % parts == part - 1


def first_error_line(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The exception of a failed report, or the reason of a skipped one, on one line."""
    if isinstance(report.longrepr, tuple):
        text = report.longrepr[2]
    else:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash is not None else str(report.longrepr)
    return " ".join(text.split())[:_ERROR_CHARACTERS]


class Recorder:
    """A pytest plugin that appends to the job's record and leaves out what it already holds."""

    def __init__(self, job: dict[str, Any], types: set[str]) -> None:
        record = Path(job["record"])
        lines = record.read_text().splitlines() if record.exists() else []
        events = [json.loads(line) for line in lines]
        self._done = {event["id"] for event in events if event["event"] == "outcome"}
        self._only = None if job["only"] is None else frozenset(job["only"])
        self._sample: list[int] = job["sample"]
        self._types = types
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
        fields: dict[str, Any] = {"outcome": self._outcome, "error": self._error}
        if self._types:
            fields["types"] = sorted(self._types)
        self._write("outcome", id=identity, **fields, seconds=seconds)

    def _begin(self) -> None:
        self._outcome, self._error, self._started = "passed", "", time.monotonic()
        self._types.clear()

    def _is_due(self, identity: str) -> bool:
        if self._only is not None and identity not in self._only:
            return False
        return in_sample(identity, *self._sample) and identity not in self._done

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        self._write("collected", count=len(items))
        due = [item for item in items if self._is_due(item.nodeid)]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(due)])
        items[:] = due

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
            self._write("end", sample=self._sample)


class DefaultPlatform:
    """A pytest plugin that takes back a choice of platform made by the tests' own configuration."""

    def pytest_sessionstart(self) -> None:
        import jax  # after the tests' own conftest.py

        jax.config.update("jax_platform_name", None)


def foreign_types(module: str) -> set[str]:
    """Element types of the program's values that no engine of a NeuronCore has: complex numbers,
    FP64 and 64-bit integers."""
    return set(_FOREIGN_TYPE.findall(_ATTRIBUTE_DATA.sub("", module)))


def watch_types() -> set[str]:
    """A set that gets the foreign types of every program that JAX compiles from now on."""
    from jax._src import compiler  # imported only where types are asked for: a heavy module

    seen: set[str] = set()
    compile_one = compiler.backend_compile_and_load

    def watched(backend: Any, module: Any, *arguments: Any, **options: Any) -> Any:
        seen.update(foreign_types(str(module)))
        return compile_one(backend, module, *arguments, **options)

    compiler.backend_compile_and_load = watched
    return seen


def leave_out_deviations(names: Sequence[str]) -> None:
    """Makes the platform compute without the rows ``names`` of its table of deviations."""
    from neuronjax.legalize import numerics  # a process of its own: it measures what a row does

    kept = tuple(row for row in numerics.DEVIATIONS if row.name not in names)
    assert len(kept) == len(numerics.DEVIATIONS) - len(names), f"no such deviation among {names}"
    numerics.DEVIATIONS = kept


def add_device_tags(tags: Sequence[str]) -> None:
    """Makes JAX's test helpers take the device under test for one with `tags` too.

    That includes the limitations which harnesses of primitives list by device: they decide which
    tests there are, and in which element types.
    """
    from jax._src import test_util  # imported only where a tag is wanted: heavy modules
    from jax._src.internal_test_util.test_harnesses import Harness

    own_tags, own_filter = test_util._get_device_tags, Harness.filter

    def passes(harness: Any, device_under_test: str, **options: Any) -> bool:
        return all(own_filter(harness, name, **options) for name in (device_under_test, *tags))

    test_util._get_device_tags = lambda: own_tags() | set(tags)
    Harness.filter = passes


def main(arguments: Sequence[str]) -> int:
    job = json.loads(Path(arguments[0]).read_text())
    if job["tags"]:
        add_device_tags(job["tags"])
    if job["without"]:
        leave_out_deviations(job["without"])
    types = watch_types() if job["watch_types"] else set()
    sys.argv = [job["name"]]  # absl flags of the tests read it
    # Tests that redirect standard output need the real one, and so have the last words of C++ code.
    flags = ["-q", "--tb=short", "--capture=no", "-p", "no:cacheprovider", "-p", "no:xdist"]
    where = ["-c", job["config"], "--rootdir", job["root"], "--continue-on-collection-errors"]
    plugins = [Recorder(job, types), DefaultPlatform()]
    return int(pytest.main([*flags, *where, *job["options"], *job["paths"]], plugins=plugins))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
