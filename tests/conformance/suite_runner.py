"""Runs tests of other projects in processes of their own, which may crash or hang.

A unit (a file, or a folder of files) is run by suite_worker.py until its record says `end`. When
the process dies or one test takes too long, the test that was running gets the outcome `crashed` or
`timeout` and a new process goes on with the tests that are left.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("suite_worker.py")
PROJECT = WORKER.parents[2]

_POLL_SECONDS = 0.25
_DEATH_CRIES = tuple(
    re.compile(pattern)
    for pattern in (
        r"\bF\d{4} [\d:.]+ +\d+ (.*)",
        r"(LLVM ERROR.*)",
        r"(terminate called.*)",
        r"(Fatal Python error.*)",
    )
)
"""What C++ and Python print before they abort, the most telling first."""

_NO_RESULTS = ":!tests/conformance/*.json"

WHOLE = (1, 1)
"""The sample that is all tests: part 1 of 1."""


@dataclass(frozen=True)
class Unit:
    """Tests that run in one process.

    Attributes:
      name: of the record.
      root: folder that test ids are relative to.
      config: pytest's configuration.
      paths: files and folders of tests.
      folder: where the process runs.
      options: more options of pytest.
      version: of the project whose tests they are.
    """

    name: str
    root: Path
    config: Path
    paths: tuple[str, ...]
    folder: Path
    options: tuple[str, ...] = ()
    version: str = ""


@dataclass(frozen=True)
class Run:
    """What all units of one run have in common.

    Attributes:
      environment: variables of the processes.
      records: folder of the records; the same folder continues an earlier run.
      timeout: seconds that one test, or collecting a unit, may take.
      crashes: after so many lost processes a unit is given up.
      sample: (k, n) runs part k of n of the tests.
      only: ids of the tests to run, instead of a sample.
      tags: names that JAX's tests shall see the device have besides its own.
      without: deviations of the platform to leave out.
      watch_types: note the element types that no engine has.
    """

    environment: Mapping[str, str]
    records: Path
    timeout: float = 300.0
    crashes: int = 40
    sample: tuple[int, int] = WHOLE
    only: tuple[str, ...] | None = None
    tags: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    watch_types: bool = False


@dataclass(frozen=True)
class Record:
    """What became of a unit's tests.

    Attributes:
      outcomes: test id to its last outcome event.
      samples: the parts that were run to their end.
      commits: the states of this project that ran them.
      versions: of the project whose tests they are.
    """

    outcomes: Mapping[str, dict[str, Any]]
    samples: frozenset[tuple[int, int]] = frozenset()
    commits: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()


def record_path(records: Path, name: str) -> Path:
    """The record of the unit ``name``."""
    return records / (name.removesuffix(".py").replace("/", ".") + ".jsonl")


def read_events(record: Path) -> list[dict[str, Any]]:
    """All whole lines of a record; a line cut off by a crash is left out."""
    if not record.exists():
        return []
    lines = record.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def read(record: Path) -> Record:
    """The record in a file, which may be missing or in the making."""
    events = read_events(record)
    return Record(
        {event["id"]: event for event in events if event["event"] == "outcome"},
        frozenset((k, n) for k, n in (e["sample"] for e in events if e["event"] == "end")),
        tuple(dict.fromkeys(e["commit"] for e in events if e["event"] == "run")),
        tuple(dict.fromkeys(e["version"] for e in events if e["event"] == "run")),
    )


def commit() -> str:
    """The state of this project: its commit, with `+` for changes that are not committed, other
    than of results."""
    head = _git("rev-parse", "--short=10", "HEAD").strip() or "unknown"
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", ".", _NO_RESULTS)
    return head + ("+" if changes else "")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(PROJECT), *arguments]
    return subprocess.run(command, capture_output=True, text=True).stdout


def culprit(events: list[dict[str, Any]], name: str) -> str:
    """Which test was running when the process that wrote `events` was lost."""
    ended = {event["id"] for event in events if event["event"] == "outcome"}
    running = [e["id"] for e in events if e["event"] == "start" and e["id"] not in ended]
    if running:
        return str(running[-1])
    phase = "exit" if any(e["event"] == "collected" for e in events) else "collection"
    return f"{name}::<{phase}>"


def run_unit(run: Run, unit: Unit) -> Mapping[str, int]:
    """Runs one unit to its end; returns the number of tests per outcome."""
    record = record_path(run.records, unit.name)
    record.parent.mkdir(parents=True, exist_ok=True)
    _drop_torn_line(record)
    lost = 0
    while run.sample not in read(record).samples:
        if not lost:
            _append(record, {"event": "run", "commit": commit(), "version": unit.version})
        fault = _run_process(run, unit, record)
        if fault is None:
            continue
        lost += 1
        given_up = fault["id"].startswith(f"{unit.name}::<") or lost >= run.crashes
        _append(record, fault, *([{"event": "end", "sample": run.sample}] if given_up else []))
    return Counter(event["outcome"] for event in read(record).outcomes.values())


def _append(record: Path, *events: Mapping[str, Any]) -> None:
    whole = "".join(json.dumps(event) + "\n" for event in events)
    with record.open("a") as file:
        file.write(whole)


def _command(run: Run, unit: Unit, record: Path) -> list[str]:
    job = {**asdict(unit), **asdict(run), "record": record}
    del job["environment"], job["records"]
    path = record.with_suffix(".job")
    path.write_text(json.dumps(job, default=str))
    return [sys.executable, "-P", str(WORKER), str(path)]


def _run_process(run: Run, unit: Unit, record: Path) -> dict[str, Any] | None:
    """Runs one worker; returns the outcome event of the test that killed it, if any."""
    _drop_torn_line(record)
    log = record.with_suffix(".log")
    before = len(read_events(record))
    started = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            _command(run, unit, record),
            cwd=unit.folder,
            env={**run.environment, "PYTHONPATH": _search_path(run.environment)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            hung = _wait(process, record, run.timeout)
        finally:
            _kill_group(process)
    events = read_events(record)[before:]
    if not hung and process.returncode >= 0 and any(e["event"] == "end" for e in events):
        return None
    return {
        "event": "outcome",
        "id": culprit(events, unit.name),
        "outcome": "timeout" if hung else "crashed",
        "error": _last_words(log, process.returncode, run.timeout if hung else None),
        "seconds": round(time.monotonic() - started, 3),
    }


def _search_path(environment: Mapping[str, str]) -> str:
    return os.pathsep.join([str(PROJECT), *filter(None, [environment.get("PYTHONPATH")])])


def _drop_torn_line(record: Path) -> None:
    text = record.read_text() if record.exists() else ""
    if text and not text.endswith("\n"):
        record.write_text(text[: text.rfind("\n") + 1])


def _wait(process: subprocess.Popen[bytes], record: Path, timeout: float) -> bool:
    """Waits for the process to end; True if the record did not grow for `timeout` seconds."""
    size, since = -1, time.monotonic()
    while process.poll() is None:
        now = record.stat().st_size if record.exists() else 0
        if now != size:
            size, since = now, time.monotonic()
        if time.monotonic() - since > timeout:
            return True
        time.sleep(_POLL_SECONDS)
    return False


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Ends the worker and what its tests have started; they share a session of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_words(log: Path, code: int, timeout: float | None) -> str:
    if timeout is not None:
        return f"no progress in {timeout:g} s"
    text = log.read_text(errors="replace")
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    cries = [found[-1] for pattern in _DEATH_CRIES if (found := pattern.findall(text))]
    return f"{how}: {cries[0] if cries else ''}"[:300]
