"""Runs the tests of nki-library on the emulator, and keeps score by file.

  python -m tests.conformance.nki_library --library=DIR
  python -m tests.conformance.nki_library --library=DIR --files=test_rope --order=adversarial

DIR is a checkout of aws-neuron/nki-library. Its simulation harness compares each kernel with a
reference in torch and leaves out tests with large shapes; `nki_library_plugin` gives it `nki`. It
needs torch and the packages of its extra `test`; --python names an interpreter that has them. A
file that takes longer than --timeout counts as one test that ran out of time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags

_LIBRARY = flags.DEFINE_string("library", None, "Checkout of nki-library.", required=True)
_PYTHON = flags.DEFINE_string("python", sys.executable, "Interpreter with torch.")
_FILES = flags.DEFINE_list("files", [], "Names of the files to run, without .py; none: all.")
_ORDER = flags.DEFINE_enum("order", "program", ["program", "adversarial"], "Of the emulator.")
_TIMEOUT = flags.DEFINE_float("timeout", 1800.0, "Seconds that a file may take.")
_SCORE = flags.DEFINE_bool("write_scoreboard", False, "Write the counts to nki_library.json.")

SCOREBOARD = Path(__file__).with_suffix(".json")
_ROOT = Path(__file__).parents[2]
_OUTCOMES = {"failure": "failed", "error": "failed", "skipped": "skipped"}


def counts(report: str) -> dict[str, int]:
    """How many tests passed, failed and were skipped, of a report in JUnit's XML."""
    score: Counter[str] = Counter()
    for case in ET.fromstring(report).iter("testcase"):
        kinds = [_OUTCOMES[part.tag] for part in case if part.tag in _OUTCOMES]
        score[kinds[0] if kinds else "passed"] += 1
    return dict(sorted(score.items()))


def run(file: Path, library: Path) -> dict[str, int]:
    """The counts of one file of tests."""
    paths = (_ROOT, library, library / "src", os.environ.get("PYTHONPATH", ""))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "JAX_PLATFORMS": "cpu",
        "NKI_LIBRARY_ORDER": _ORDER.value,
        "NEURON_PYTHONHASHSEED": "0",  # of the tests that the library chooses at random
    }
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            *(_PYTHON.value, "-m", "pytest", "-q", "--test-mode", "simulation"),
            *("-p", "tests.conformance.nki_library_plugin", "-p", "no:cacheprovider"),
            *(f"--junitxml={report}", str(file)),
        ]
        try:
            subprocess.run(
                command,
                cwd=library,
                env=environment,
                timeout=_TIMEOUT.value,
                stdout=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"timeout": 1}
        return counts(report.read_text()) if report.exists() else {"crashed": 1}


def main(arguments: Sequence[str]) -> None:
    library = Path(_LIBRARY.value).resolve()
    score = json.loads(SCOREBOARD.read_text()) if SCOREBOARD.exists() else {}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    for file in sorted((library / "test" / "integration").rglob("test_*.py")):
        if _FILES.value and file.stem not in _FILES.value:
            continue
        name = file.relative_to(library / "test" / "integration").as_posix()
        result = run(file, library)
        print(name, result, flush=True)
        score.setdefault(name, {})[_ORDER.value] = {"commit": commit, **result}
        if _SCORE.value:
            SCOREBOARD.write_text(json.dumps(score, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    app.run(main)
