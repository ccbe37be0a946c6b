"""The score of a platform on JAX's tests: what passes of what passes on JAX's `cpu`."""

from __future__ import annotations

import datetime
import json
import re
from collections import Counter, defaultdict
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.conformance import suite_runner

PLATFORMS = ("cpu", "neuron")
_INNER_PARENTHESES = re.compile(r"\([^()]*\)")
_VARYING = (
    (re.compile(r"0x[0-9a-fA-F]+"), "#"),
    (re.compile(r"\[[^\[\]]*\]"), "[…]"),
    (re.compile(r"'[^']*'|\"[^\"]*\""), "'…'"),
    (re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?"), "#"),
)
_CAUSE_CHARACTERS = 200
_NOT_RUN = {"outcome": "not run", "error": "the file was given up, or has no such test"}

Outcomes = dict[str, dict[str, Any]]


def cause(error: str) -> str:
    """The error line without what differs between tests of one cause: numbers, names, lists,
    and what stands in parentheses, such as source locations."""
    nested = 1
    while nested:
        error, nested = _INNER_PARENTHESES.subn("", error)
    for pattern, stand_in in _VARYING:
        error = pattern.sub(stand_in, error)
    return error[:_CAUSE_CHARACTERS]


def read(work: Path, x64: bool) -> dict[str, dict[str, Outcomes]]:
    """Platform to record name to the outcomes of its tests; files that were run to their end."""
    found: dict[str, dict[str, Outcomes]] = {}
    for platform in PLATFORMS:
        folder = suite_runner.records_folder(work, platform, x64)
        records = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
        finished = [record for record in records if suite_runner.is_finished(record)]
        found[platform] = {record.stem: suite_runner.outcomes(record) for record in finished}
    return found


def scoreboard(results: dict[str, dict[str, Outcomes]]) -> dict[str, Any]:
    """Counts per file and in total, the score, and the lost tests grouped by cause.

    A file enters the score when both platforms have run it; a test that passes on cpu and has no
    outcome on neuron is lost. Upstream skips many tests on any platform but ``cpu``, by name: the
    second share leaves out what is skipped on neuron.
    """
    files: dict[str, dict[str, dict[str, int]]] = defaultdict(dict)
    for platform, by_file in results.items():
        for name, tests in by_file.items():
            files[name][platform] = _counts(tests)
    both = results["cpu"].keys() & results["neuron"].keys()
    cpu = {i: e for name in both for i, e in results["cpu"][name].items()}
    neuron = {i: e for name in both for i, e in results["neuron"][name].items()}
    passing = {i for i, event in cpu.items() if event["outcome"] == "passed"}
    lost = {i: neuron.get(i, _NOT_RUN) for i in passing}
    lost = {i: event for i, event in lost.items() if event["outcome"] != "passed"}
    kept = len(passing) - len(lost)
    skipped = sum(event["outcome"] == "skipped" for event in lost.values())
    return {
        "totals": {platform: _total(results[platform]) for platform in results},
        "score": {
            "passed_on_cpu": len(passing),
            "passed_on_both": kept,
            "skipped_on_neuron": skipped,
            "share": _share(kept, len(passing)),
            "share_of_not_skipped": _share(kept, len(passing) - skipped),
        },
        "files": dict(sorted(files.items())),
        "causes": _by_cause(lost),
    }


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 5) if whole else None


def _counts(tests: Outcomes) -> dict[str, int]:
    return dict(sorted(Counter(event["outcome"] for event in tests.values()).items()))


def _total(by_file: dict[str, Outcomes]) -> dict[str, int]:
    return _counts({i: event for tests in by_file.values() for i, event in tests.items()})


def _by_cause(lost: Outcomes) -> list[dict[str, Any]]:
    groups: dict[str, list[dict[str, str]]] = defaultdict(list)
    for identity, event in sorted(lost.items()):
        line = {"id": identity, "outcome": event["outcome"], "error": event["error"]}
        groups[cause(f"{event['outcome']}: {event['error']}")].append(line)
    ranked = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return [{"cause": name, "count": len(tests), "tests": tests} for name, tests in ranked]


def write(path: Path, work: Path, x64: bool) -> None:
    """Writes the scoreboard of the records under `work` to the JSON file `path`."""
    head = {
        "date": datetime.date.today().isoformat(),
        "versions": {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")},
        "x64": x64,
        "devices": suite_runner.DEVICES,
    }
    body = head | scoreboard(read(work, x64))
    path.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n")
