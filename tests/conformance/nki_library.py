"""Runs the tests of nki-library on the emulator, and keeps score by file.

  python -m tests.conformance.nki_library --library=DIR
  python -m tests.conformance.nki_library --library=DIR --files=test_rope --order=adversarial
  python -m tests.conformance.nki_library --library=DIR --sample=8 --test_seconds=120
  python -m tests.conformance.nki_library --library=DIR --file_seconds=60 --go_on
  python -m tests.conformance.nki_library --library=DIR --sample=3 --platform_target=trn3
  python -m tests.conformance.nki_library --library=DIR --files=test_moe_tkg --go_on --explain

DIR is a checkout of aws-neuron/nki-library. Its simulation harness compares each kernel with a
reference in torch and leaves out tests with large shapes; `nki_library_plugin` gives it `nki`. It
needs torch and the packages of its extra `test`; --python names an interpreter that has them. The
records of a file have the message of each failure; the most frequent ones are printed at the end.

The scoreboard has the counts of each file by the order of the run, with the platform where that is
not the library's default, and says by hand what is behind failures (`explained`). `--explain` runs
tests that failed once more, with FP32 numbers in the place of BF16 and FP8. What passes then has
`failed by rounding`: references are FP32, and rounding decides between experts with nearly the same
score.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from absl import app, flags

_LIBRARY = flags.DEFINE_string("library", None, "Checkout of nki-library.", required=True)
_PYTHON = flags.DEFINE_string("python", sys.executable, "Interpreter with torch.")
_FILES = flags.DEFINE_list("files", [], "Names of the files to run, without .py; none: all.")
_ORDER = flags.DEFINE_enum("order", "program", ["program", "adversarial"], "Of the emulator.")
_PLATFORM = flags.DEFINE_enum(
    "platform_target", "trn2", ["trn2", "trn3"], "That tests are chosen for."
)
_SAMPLE = flags.DEFINE_integer("sample", 0, "Tests of each file, evenly spread; 0: all.")
_BUDGET = flags.DEFINE_integer(
    "file_seconds", 0, "CPU seconds for the tests of a file, evenly spread; 0: any."
)
_GO_ON = flags.DEFINE_bool("go_on", False, "Keep the records there are; run what they lack.")
_EXPLAIN = flags.DEFINE_bool("explain", False, "Run failures again with NKI_PRECISE_FP=0.")
_TEST = flags.DEFINE_integer("test_seconds", 600, "CPU seconds that a test may take.")
_TIMEOUT = flags.DEFINE_float("timeout", 7200.0, "Seconds that a file may take.")
_MEMORY = flags.DEFINE_integer("memory_gb", 8, "GiB that the tests of a file may take.")
_RECORDS = flags.DEFINE_string("records", "runs/nki_library", "Folder of the records.")
_SCORE = flags.DEFINE_bool("write_scoreboard", False, "Write the counts to nki_library.json.")

SCOREBOARD = Path(__file__).with_suffix(".json")
_ROOT = Path(__file__).parents[2]
_CAUSES = 40
_PLUGINS = ("tests.conformance.nki_library_plugin", "tests.conformance.nki_library_records")

Record = Mapping[str, Any]


def counts(records: Iterable[Record]) -> dict[str, int]:
    """How many tests passed, failed and were skipped, how many needed more time or memory than they
    may take, and how many the library left out."""
    score: Counter[str] = Counter()
    for record in records:
        score["left out"] += record.get("left_out", 0)
        score["collected"] += record.get("collected", 0)
        if "outcome" in record:
            score[record["outcome"]] += 1
    return {name: count for name, count in sorted(score.items()) if count}


def causes(records: Iterable[Record]) -> Counter[str]:
    """The messages of failures without the numbers in them, and how often each occurred."""
    messages = (record["message"] for record in records if record.get("outcome") == "failed")
    return Counter(re.sub(r"\d+", "#", " ".join(message.split()))[:300] for message in messages)


def run(
    file: Path,
    library: Path,
    records: Path,
    only: Path | None = None,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Runs one file of tests, or of them the ones that ``only`` lists; what came of it is added to
    ``records``. ``settings`` are variables of the environment."""
    paths = (_ROOT, library, library / "src", os.environ.get("PYTHONPATH", ""))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "JAX_PLATFORMS": "cpu",
        "NKI_LIBRARY_ORDER": _ORDER.value,
        "NEURON_PYTHONHASHSEED": "0",  # of the tests that the library chooses at random
        **settings,
    }
    with (
        tempfile.TemporaryDirectory(prefix="output_", dir=records.parent) as output,
        records.with_suffix(".log").open("w") as log,
    ):
        command = [
            *("prlimit", f"--data={_MEMORY.value << 30}"),
            *(_PYTHON.value, "-m", "pytest", "-q", "--test-mode", "simulation", str(file)),
            f"--platform-target={_PLATFORM.value}",
            *(part for name in _PLUGINS for part in ("-p", name)),
            *("-p", "no:cacheprovider", f"--output-directory={output}", f"--scratch={output}"),
            *(f"--records={records}", f"--sample={_SAMPLE.value}", f"--test-seconds={_TEST.value}"),
            f"--file-seconds={_BUDGET.value}",
            *([f"--only={only}"] if only is not None else []),
        ]
        try:
            ended = subprocess.run(
                command,
                cwd=library,
                env=environment,
                timeout=_TIMEOUT.value,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            _add(records, f"{file.name} took longer than --timeout allows")
        else:
            if ended.returncode < 0:
                _add(records, f"{file.name} was ended by signal {-ended.returncode}")


def failed_by_rounding(file: Path, library: Path, records: Path) -> int:
    """How many of the tests that failed pass with FP32 numbers in the place of BF16 and FP8."""
    failed = [line["id"] for line in read(records) if line.get("outcome") == "failed"]
    if not failed:
        return 0
    only, again = records.with_suffix(".failed"), records.with_suffix(".unrounded.jsonl")
    only.write_text("\n".join(failed))
    again.write_text("")
    run(file, library, again, only, {"NKI_PRECISE_FP": "0"})
    return counts(read(again)).get("passed", 0)


def _add(records: Path, message: str) -> None:
    with records.open("a") as file:
        file.write(json.dumps({"id": "", "outcome": "failed", "message": message}) + "\n")


def read(records: Path) -> list[Record]:
    """The lines of a file of records."""
    return [json.loads(line) for line in records.read_text().splitlines()]


def main(arguments: Sequence[str]) -> None:
    library, column = Path(_LIBRARY.value).resolve(), _ORDER.value
    if _PLATFORM.value != _PLATFORM.default:
        column += f" on {_PLATFORM.value}"
    folder = Path(_RECORDS.value).resolve() / column.replace(" ", "_")
    folder.mkdir(parents=True, exist_ok=True)
    score = json.loads(SCOREBOARD.read_text()) if SCOREBOARD.exists() else {}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    everything: list[Record] = []
    for file in sorted((library / "test" / "integration").rglob("test_*.py")):
        if _FILES.value and file.stem not in _FILES.value:
            continue
        name = file.relative_to(library / "test" / "integration").as_posix()
        records = folder / f"{file.stem}.jsonl"
        if not _GO_ON.value:
            records.unlink(missing_ok=True)
        records.touch()
        run(file, library, records)
        lines = read(records)
        everything += lines
        result = counts(lines)
        if _EXPLAIN.value and (rounded := failed_by_rounding(file, library, records)):
            result["failed by rounding"] = rounded
        print(name, result, flush=True)
        score.setdefault(name, {})[column] = {"commit": commit, **result}
        if _SCORE.value:
            SCOREBOARD.write_text(json.dumps(score, indent=1, sort_keys=True) + "\n")
    for message, count in causes(everything).most_common(_CAUSES):
        print(f"{count:5}  {message}")


if __name__ == "__main__":
    app.run(main)
