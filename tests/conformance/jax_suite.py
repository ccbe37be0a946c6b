"""Runs JAX's own test-suite on a platform and keeps score against JAX's `cpu`.

  python -m tests.conformance.jax_suite --jax_repo=DIR --platform=cpu
  python -m tests.conformance.jax_suite --jax_repo=DIR --platform=neuron
  python -m tests.conformance.jax_suite --write_scoreboard

DIR is a checkout of jax-ml/jax at the tag of the installed jax; the installed jax is what is
tested. Results are kept under --work_dir, and a later call goes on where an earlier one stopped;
the scoreboard keeps the files of earlier runs that were not run again.
The score is the share of the tests passing on cpu that pass on neuron too.
The tests import, besides jax: absl-py cloudpickle filelock flatbuffers hypothesis matplotlib mpmath
pillow portpicker pytest rich scipy.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from absl import app, flags

from tests.conformance import suite_files, suite_runner, suite_score

_REPO = flags.DEFINE_string("jax_repo", None, "Checkout of jax-ml/jax whose tests are run.")
_PLATFORM = flags.DEFINE_enum(
    "platform", "neuron", list(suite_runner.PLATFORM_VARIABLES), "Platform under test."
)
_FILES = flags.DEFINE_string("files", "*", "Glob of test files, as paths under tests/.")
_JOBS = flags.DEFINE_integer("jobs", 1, "Files run at the same time.", lower_bound=1)
_TIMEOUT = flags.DEFINE_float("timeout", 300.0, "Seconds one test may take.")
_CRASHES = flags.DEFINE_integer("crashes", 40, "Crashes after which a file is given up.")
_CASES = flags.DEFINE_integer("cases", 10, "Cases per generated test (JAX_NUM_GENERATED_CASES).")
_X64 = flags.DEFINE_bool("x64", False, "Run with JAX_ENABLE_X64=1; upstream's default is 0.")
_WORK = flags.DEFINE_string("work_dir", "jax_suite_results", "Folder of the records.")
_SCORE = flags.DEFINE_bool("write_scoreboard", False, "Write scoreboard.json from the records.")

SCOREBOARD = Path(__file__).with_name("scoreboard.json")
_COLUMNS = ("passed", "failed", "skipped", "crashed", "timeout")


def _settings(checkout: Path) -> suite_runner.Settings:
    return suite_runner.Settings(
        checkout=checkout.resolve(),
        platform=_PLATFORM.value,
        x64=_X64.value,
        work=Path(_WORK.value).resolve(),
        cases=_CASES.value,
        timeout=_TIMEOUT.value,
        crashes=_CRASHES.value,
    )


def _run_and_report(settings: suite_runner.Settings, name: str) -> None:
    started = time.monotonic()
    counts = suite_runner.run_file(settings, name)
    numbers = "".join(f"{counts.get(column, 0):9d}" for column in _COLUMNS)
    print(f"{name:44s}{numbers}{time.monotonic() - started:9.1f} s", flush=True)


def _run_suite(settings: suite_runner.Settings) -> None:
    names = suite_files.test_files(settings.checkout / "tests", _FILES.value)
    print(f"{'file':44s}" + "".join(f"{column:>9s}" for column in _COLUMNS), flush=True)
    with ThreadPoolExecutor(_JOBS.value) as pool:
        for done in [pool.submit(_run_and_report, settings, name) for name in names]:
            done.result()


def main(arguments: Sequence[str]) -> None:
    if arguments[1:] or not (_REPO.value or _SCORE.value):
        raise app.UsageError("give --jax_repo to run tests, --write_scoreboard to count, or both")
    if _REPO.value:
        _run_suite(_settings(Path(_REPO.value)))
    if _SCORE.value:
        suite_score.write(SCOREBOARD, Path(_WORK.value), _X64.value, _CASES.value)
        print(f"wrote {os.path.relpath(SCOREBOARD)}")


if __name__ == "__main__":
    app.run(main, argv=sys.argv)
