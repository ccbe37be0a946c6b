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
_VARYING = (
    (re.compile(r"0x[0-9a-fA-F]+"), "0x…"),
    (re.compile(r"\[[^\[\]]*\]"), "[…]"),
    (re.compile(r"'[^']*'|\"[^\"]*\""), "'…'"),
    (re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?"), "#"),
)
_CAUSE_CHARACTERS = 110

Outcomes = dict[str, dict[str, Any]]


def cause(error: str) -> str:
    """The error line without what differs between tests of one cause: numbers, names, lists."""
    for pattern, stand_in in _VARYING:
        error = pattern.sub(stand_in, error)
    return error[:_CAUSE_CHARACTERS]


def read(work: Path, x64: bool) -> dict[str, dict[str, Outcomes]]:
    """Platform to record name to the outcomes of its tests."""
    found: dict[str, dict[str, Outcomes]] = {}
    for platform in PLATFORMS:
        folder = suite_runner.records_folder(work, platform, x64)
        records = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
        found[platform] = {r.stem: suite_runner.outcomes(r) for r in records}
    return found


def losses(cpu: Outcomes, neuron: Outcomes) -> Outcomes:
    """The tests that pass on cpu, were run on neuron, and do not pass there."""
    passing = {identity for identity, event in cpu.items() if event["outcome"] == "passed"}
    return {i: e for i, e in neuron.items() if i in passing and e["outcome"] != "passed"}


def scoreboard(results: dict[str, dict[str, Outcomes]]) -> dict[str, Any]:
    """Counts per file and in total, the score, and the lost tests grouped by cause.

    Files without a neuron record do not enter the score.
    """
    files: dict[str, dict[str, dict[str, int]]] = defaultdict(dict)
    for platform, by_file in results.items():
        for name, outcomes in by_file.items():
            files[name][platform] = dict(Counter(e["outcome"] for e in outcomes.values()))
    both = [name for name in results["neuron"] if name in results["cpu"]]
    lost: Outcomes = {}
    kept = 0
    for name in both:
        cpu, neuron = results["cpu"][name], results["neuron"][name]
        lost |= losses(cpu, neuron)
        kept += sum(
            neuron[i]["outcome"] == "passed"
            for i in cpu.keys() & neuron.keys()
            if cpu[i]["outcome"] == "passed"
        )
    tried = kept + len(lost)
    return {
        "totals": {p: _total(results[p]) for p in results},
        "score": {
            "passed_on_cpu": tried,
            "passed_on_both": kept,
            "share": round(kept / tried, 5) if tried else None,
        },
        "files": dict(sorted(files.items())),
        "causes": _by_cause(lost),
    }


def _total(by_file: dict[str, Outcomes]) -> dict[str, int]:
    return dict(Counter(e["outcome"] for o in by_file.values() for e in o.values()))


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
