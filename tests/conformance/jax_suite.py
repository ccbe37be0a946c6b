"""Runs JAX's own test-suite in a setting and keeps score.

  python -m tests.conformance.jax_suite --jax_repo=DIR --setting=default
  python -m tests.conformance.jax_suite --jax_repo=DIR --setting=ieee --sample=1/8
  python -m tests.conformance.jax_suite --jax_repo=DIR --explain
  python -m tests.conformance.jax_suite --write_scoreboard

DIR is a checkout of jax-ml/jax at the tag of the installed jax; the installed jax is what is
tested. Settings: `cpu` is JAX's own platform; `ieee` has XLA's arithmetic; `default` is what users
get; `engine` computes with the emulated engines, and leaves tests aside whose programs have types
that no engine has. Results are kept under --work_dir, and a later call goes on where an earlier one
stopped; the scoreboard keeps the files of earlier runs that were not run again.
The score is the share of the tests passing in the reference that pass in the setting too: `cpu`, or
`default` for `engine`. What `cpu` makes of the tests is kept in jax_cpu.json.xz, written by
--write_reference. --explain runs again what was lost in `default`, to find which documented
deviation it is due to.
Quick: --cases=1, the default, generates one case per parametrised test (upstream: 10), and
--sample=K/N runs part K of N.
The tests import, besides jax: absl-py cloudpickle filelock flatbuffers hypothesis matplotlib mpmath
pillow portpicker pytest rich scipy.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from absl import app, flags

from tests.conformance import (
    suite_deviations,
    suite_files,
    suite_reference,
    suite_runner,
    suite_score,
    suite_settings,
)
from tests.conformance.suite_runner import Record, Run, Unit

_REPO = flags.DEFINE_string("jax_repo", None, "Checkout of jax-ml/jax whose tests are run.")
_SETTING = flags.DEFINE_enum(
    "setting", "default", list(suite_settings.SETTINGS), "Setting under test."
)
_FILES = flags.DEFINE_list("files", ["*"], "Globs of test files, as paths under tests/.")
_SAMPLE = flags.DEFINE_string("sample", "1/1", "K/N: part K of N of the tests.")
_JOBS = flags.DEFINE_integer("jobs", 1, "Files run at the same time.", lower_bound=1)
_TIMEOUT = flags.DEFINE_float("timeout", 300.0, "Seconds one test may take.")
_CRASHES = flags.DEFINE_integer("crashes", 40, "Crashes after which a file is given up.")
_CASES = flags.DEFINE_integer("cases", 1, "Cases per generated test (JAX_NUM_GENERATED_CASES).")
_X64 = flags.DEFINE_bool("x64", False, "Run with JAX_ENABLE_X64=1; upstream's default is 0.")
_WORK = flags.DEFINE_string("work_dir", "runs/jax_suite", "Folder of the records.")
_EXPLAIN = flags.DEFINE_bool("explain", False, "Find what the losses in `default` are due to.")
_REFERENCE = flags.DEFINE_bool("write_reference", False, "Write jax_cpu.json.xz from the records.")
_SCORE = flags.DEFINE_bool("write_scoreboard", False, "Write scoreboard.json from the records.")

SCOREBOARD = Path(__file__).with_name("scoreboard.json")
DEVICES = 8
_COLUMNS = ("passed", "failed", "skipped", "crashed", "timeout")
_REASONS = "reasons.jsonl"


def _head() -> dict[str, Any]:
    """What results must have in common to be compared."""
    versions = {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
    return {"versions": versions, "x64": _X64.value, "devices": DEVICES}


def _facts() -> dict[str, int]:
    """What the results of a file must have in common to be compared, and may differ by file."""
    return {"cases": _CASES.value}


def _folder(setting: str) -> Path:
    suffix = "-x64" if _X64.value else ""
    return Path(_WORK.value).resolve() / f"{setting}{suffix}-{_CASES.value}"


def _run(setting: str) -> Run:
    part, parts = _SAMPLE.value.split("/")
    switches = {
        "JAX_ENABLE_X64": str(int(_X64.value)),
        "JAX_NUM_GENERATED_CASES": str(_CASES.value),
    }
    return Run(
        environment=suite_settings.environment(dict(os.environ), setting, DEVICES) | switches,
        records=_folder(setting),
        timeout=_TIMEOUT.value,
        crashes=_CRASHES.value,
        sample=(int(part), int(parts)),
        tags=suite_settings.DEVICE_TAGS[setting],
        watch_types=setting == "engine",
    )


def _unit(checkout: Path, name: str) -> Unit:
    tests = checkout.resolve() / "tests"
    config = tests.parent / "pyproject.toml"
    version = metadata.version("jax")
    return Unit(name, tests, config, (str(tests / name),), tests, version=version)


def _run_and_report(run: Run, unit: Unit) -> None:
    started = time.monotonic()
    counts = suite_runner.run_unit(run, unit)
    numbers = "".join(f"{counts.get(column, 0):9d}" for column in _COLUMNS)
    print(f"{unit.name:44s}{numbers}{time.monotonic() - started:9.1f} s", flush=True)


def _run_suite(checkout: Path) -> None:
    names = suite_files.test_files(checkout / "tests", _FILES.value)
    run = _run(_SETTING.value)
    print(f"{'file':44s}" + "".join(f"{column:>9s}" for column in _COLUMNS), flush=True)
    with ThreadPoolExecutor(_JOBS.value) as pool:
        for done in [pool.submit(_run_and_report, run, _unit(checkout, name)) for name in names]:
            done.result()


def _records(setting: str) -> dict[str, Record]:
    kept = (
        suite_reference.read(suite_reference.PATH, _head() | _facts()) if setting == "cpu" else {}
    )
    return kept | suite_score.read_records(_folder(setting))


def _scores(setting: str) -> dict[str, dict[str, Any]]:
    reference = _records(suite_settings.REFERENCE[setting])
    return suite_score.unit_scores(reference, _records(setting), _facts())


def _explain(checkout: Path) -> None:
    """Appends test id and reason of every loss in `default` to the file of reasons."""
    files = suite_files.test_files(checkout / "tests", ["*"])
    names = {suite_runner.record_path(Path(), name).stem: name for name in files}
    scores = {names[name]: score for name, score in _scores("default").items() if score["lost"]}
    lost = {name: [event["id"] for event in score["lost"]] for name, score in scores.items()}
    units = {name: _unit(checkout, name) for name in lost}
    folder = _folder("default") / "explain"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _REASONS).open("w", buffering=1) as file:
        for pair in suite_deviations.reasons(_run("default"), units, lost, folder):
            print(*pair, flush=True)
            file.write(json.dumps(pair) + "\n")


def _write_scoreboard() -> None:
    path = _folder("default") / "explain" / _REASONS
    reasons = dict(map(json.loads, path.read_text().splitlines())) if path.exists() else {}
    for setting in suite_settings.REFERENCE:
        units = _scores(setting)
        if setting == "default":
            suite_score.add_reasons(units, reasons)
        if units:
            suite_score.update(SCOREBOARD, f"jax {setting}", _head(), units)
    print(f"wrote {os.path.relpath(SCOREBOARD)}")


def main(arguments: Sequence[str]) -> None:
    if arguments[1:] or not (_REPO.value or _SCORE.value or _REFERENCE.value):
        raise app.UsageError("give --jax_repo to run tests, --write_scoreboard to count, or both")
    if _REPO.value and _EXPLAIN.value:
        _explain(Path(_REPO.value))
    elif _REPO.value:
        _run_suite(Path(_REPO.value))
    if _REFERENCE.value:
        suite_reference.write(suite_reference.PATH, _head() | _facts(), _records("cpu"))
    if _SCORE.value:
        _write_scoreboard()


if __name__ == "__main__":
    app.run(main, argv=sys.argv)
