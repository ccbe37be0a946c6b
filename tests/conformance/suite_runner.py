"""Runs files of JAX's tests in processes of their own, which may crash or hang.

A file is run by suite_worker.py until its record says `end`. When the process dies or one test
takes too long, the test that was running gets the outcome `crashed` or `timeout` and a new process
goes on with the tests that are left.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("suite_worker.py")
PROJECT = WORKER.parents[2]
DEVICES = 8

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

PLATFORM_VARIABLES: dict[str, dict[str, str]] = {
    "cpu": {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}",
    },
    "neuron": {
        "JAX_PLATFORMS": "neuron,cpu",
        "NEURONJAX_TARGET": "trn2.3xlarge",
        "NEURON_LOGICAL_NC_CONFIG": "1",
        "NEURONJAX_NUMERICS": "ieee",
        "NEURONJAX_LEGALITY": "off",
    },
}
"""Environment that gives each platform `DEVICES` devices and IEEE arithmetic."""

DEVICE_TAGS: dict[str, tuple[str, ...]] = {"cpu": (), "neuron": ("cpu",)}
"""Tags a platform claims besides its name: upstream runs hundreds of tests on `cpu` only that are
about JAX, not about the CPU."""


@dataclass(frozen=True)
class Settings:
    """What every file of one run has in common.

    Attributes:
      checkout: a checkout of jax-ml/jax; only its tests/ folder and pyproject.toml are read.
      platform: a key of PLATFORM_VARIABLES.
      x64: run with JAX_ENABLE_X64=1.
      work: folder of the records; the same folder continues an earlier run.
      cases: JAX_NUM_GENERATED_CASES, parameter combinations per generated test.
      timeout: seconds that one test, or collecting a file, may take.
      crashes: after so many lost processes a file is given up.
    """

    checkout: Path
    platform: str
    x64: bool
    work: Path
    cases: int
    timeout: float
    crashes: int

    def environment(self) -> dict[str, str]:
        search = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            **os.environ,
            **PLATFORM_VARIABLES[self.platform],
            "PYTHONPATH": os.pathsep.join(search),
            "JAX_ENABLE_X64": str(int(self.x64)),
            "JAX_NUM_GENERATED_CASES": str(self.cases),
        }

    def folder(self) -> Path:
        return records_folder(self.work, self.platform, self.x64)


def records_folder(work: Path, platform: str, x64: bool) -> Path:
    """Where the records of one platform lie: WORK/cpu, WORK/neuron-x64, …"""
    return work / (platform + ("-x64" if x64 else ""))


def record_path(folder: Path, name: str) -> Path:
    """The record of the test file `name`, a path under tests/."""
    return folder / (name.removesuffix(".py").replace("/", ".") + ".jsonl")


def read_events(record: Path) -> list[dict[str, Any]]:
    """All whole lines of a record; a line cut off by a crash is left out."""
    if not record.exists():
        return []
    lines = record.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def outcomes(record: Path) -> dict[str, dict[str, Any]]:
    """Test id to its last outcome event."""
    events = read_events(record)
    return {event["id"]: event for event in events if event["event"] == "outcome"}


def is_finished(record: Path) -> bool:
    """Whether the record says that its file has no more tests."""
    return any(event["event"] == "end" for event in read_events(record))


def culprit(events: list[dict[str, Any]], name: str) -> str:
    """Which test was running when the process that wrote `events` was lost."""
    ended = {event["id"] for event in events if event["event"] == "outcome"}
    running = [e["id"] for e in events if e["event"] == "start" and e["id"] not in ended]
    if running:
        return str(running[-1])
    phase = "exit" if any(e["event"] == "collected" for e in events) else "collection"
    return f"{name}::<{phase}>"


def run_file(settings: Settings, name: str) -> Mapping[str, int]:
    """Runs one file to its end; returns the number of tests per outcome."""
    record = record_path(settings.folder(), name)
    record.parent.mkdir(parents=True, exist_ok=True)
    lost = 0
    while not is_finished(record):
        fault = _run_process(settings, name, record)
        if fault is None:
            continue
        lost += 1
        if fault["id"].startswith(f"{name}::<") or lost >= settings.crashes:
            _append(record, fault, {"event": "end"})
        else:
            _append(record, fault)
    return Counter(event["outcome"] for event in outcomes(record).values())


def _append(record: Path, *events: Mapping[str, Any]) -> None:
    whole = "".join(json.dumps(event) + "\n" for event in events)
    with record.open("a") as file:
        file.write(whole)


def _run_process(settings: Settings, name: str, record: Path) -> dict[str, Any] | None:
    """Runs one worker; returns the outcome event of the test that killed it, if any."""
    _drop_torn_line(record)
    log = record.with_suffix(".log")
    before = len(read_events(record))
    paths = (str(WORKER), str(settings.checkout), name, str(record))
    command = [sys.executable, "-P", *paths, *DEVICE_TAGS[settings.platform]]
    started = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=settings.checkout / "tests",
            env=settings.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            hung = _wait(process, record, settings.timeout)
        finally:
            _kill_group(process)
    events = read_events(record)[before:]
    if not hung and process.returncode >= 0 and any(e["event"] == "end" for e in events):
        return None
    return {
        "event": "outcome",
        "id": culprit(events, name),
        "outcome": "timeout" if hung else "crashed",
        "error": _last_words(log, process.returncode, settings.timeout if hung else None),
        "seconds": round(time.monotonic() - started, 3),
    }


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
