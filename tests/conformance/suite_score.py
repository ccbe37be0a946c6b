"""The score of a platform on JAX's tests: what passes of what passes on JAX's `cpu`."""

from __future__ import annotations

import datetime
import json
import re
from collections import Counter
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
_CHECKOUT = re.compile(r"/\S*/(?=tests/)")
"""What stands before a path of JAX's tests, which differs from machine to machine."""
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


def file_scores(results: dict[str, dict[str, Outcomes]], cases: int) -> dict[str, dict[str, Any]]:
    """What is kept of every file that both platforms have run: counts, and the tests lost.

    A test that passes on cpu and has no outcome on neuron is lost. ``cases`` is the number of cases
    per generated test.
    """
    both = results["cpu"].keys() & results["neuron"].keys()
    today = datetime.date.today().isoformat()
    return {
        name: {"date": today, "cases": cases}
        | _file_score(results["cpu"][name], results["neuron"][name])
        for name in sorted(both)
    }


def _file_score(cpu: Outcomes, neuron: Outcomes) -> dict[str, Any]:
    passing = [i for i, event in cpu.items() if event["outcome"] == "passed"]
    events = {i: neuron.get(i, _NOT_RUN) for i in passing}
    lost = {i: event for i, event in sorted(events.items()) if event["outcome"] != "passed"}
    return {
        "cpu": _counts(cpu),
        "neuron": _counts(neuron),
        "passed_on_cpu": len(passing),
        "passed_on_both": len(passing) - len(lost),
        "lost": [
            {
                "id": identity,
                "outcome": event["outcome"],
                "error": _CHECKOUT.sub("", event["error"]),
            }
            for identity, event in lost.items()
        ],
    }


def scoreboard(files: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Counts in total, the score, and the lost tests grouped by cause, of ``file_scores``.

    Upstream skips some tests by the name of the platform: the second share leaves out what is
    skipped on neuron.
    """
    lost = [event for file in files.values() for event in file["lost"]]
    passing = sum(file["passed_on_cpu"] for file in files.values())
    skipped = sum(event["outcome"] == "skipped" for event in lost)
    kept = passing - len(lost)
    return {
        "totals": {
            platform: dict(sum((Counter(file[platform]) for file in files.values()), Counter()))
            for platform in PLATFORMS
        },
        "score": {
            "files": len(files),
            "passed_on_cpu": passing,
            "passed_on_both": kept,
            "skipped_on_neuron": skipped,
            "share": _share(kept, passing),
            "share_of_not_skipped": _share(kept, passing - skipped),
        },
        "causes": _by_cause(lost),
        "files": files,
    }


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 5) if whole else None


def _counts(tests: Outcomes) -> dict[str, int]:
    return dict(sorted(Counter(event["outcome"] for event in tests.values()).items()))


def _by_cause(lost: list[dict[str, Any]]) -> list[dict[str, Any]]:
    counts = Counter(cause(f"{event['outcome']}: {event['error']}") for event in lost)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [{"cause": name, "count": count} for name, count in ranked]


def write(path: Path, work: Path, x64: bool, cases: int) -> None:
    """Writes the scoreboard to the JSON file ``path``: the files recorded under ``work``, and those
    that an earlier scoreboard there has of the same versions."""
    head = {
        "versions": {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")},
        "x64": x64,
        "devices": suite_runner.DEVICES,
    }
    earlier = json.loads(path.read_text()) if path.exists() else {}
    kept = earlier["files"] if head.items() <= earlier.items() else {}
    body = head | scoreboard(dict(sorted((kept | file_scores(read(work, x64), cases)).items())))
    path.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n")
