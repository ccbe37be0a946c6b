"""The score of a setting on tests of others: what passes of what passes in its reference."""

from __future__ import annotations

import datetime
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.conformance import suite_runner
from tests.conformance.suite_runner import Record
from tests.conformance.suite_worker import in_sample

_INNER_PARENTHESES = re.compile(r"\([^()]*\)")
_VARYING = (
    (re.compile(r"0x[0-9a-fA-F]+"), "#"),
    (re.compile(r"\[[^\[\]]*\]"), "[…]"),
    (re.compile(r"'[^']*'|\"[^\"]*\""), "'…'"),
    (re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?"), "#"),
)
_FOLDERS = re.compile(r"(?<![\w.])/(?:[^\s/]+/)+(?=[^\s/]+/[^\s/]+)")
"""What stands before the last folder of an absolute path, which differs from machine to machine."""
_CAUSE_CHARACTERS = 200
_NOT_RUN = {"outcome": "not run", "error": "the unit was given up, or has no such test"}

Records = Mapping[str, Record]
Events = Mapping[str, Mapping[str, Any]]


def cause(error: str) -> str:
    """The error line without what differs between tests of one cause: numbers, names, lists,
    and what stands in parentheses, such as source locations."""
    nested = 1
    while nested:
        error, nested = _INNER_PARENTHESES.subn("", error)
    for pattern, stand_in in _VARYING:
        error = pattern.sub(stand_in, error)
    return error[:_CAUSE_CHARACTERS]


def read_records(folder: Path) -> dict[str, Record]:
    """The records in ``folder`` of units of which at least one part was run to its end."""
    paths = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
    records = {path.stem: suite_runner.read(path) for path in paths}
    return {name: record for name, record in records.items() if record.samples}


def _covered(record: Record, other: Record) -> dict[str, dict[str, Any]]:
    """The outcomes in ``record`` of tests that belong to a part which ``other`` ran to its end."""
    return {
        identity: event
        for identity, event in record.outcomes.items()
        if any(in_sample(identity, *sample) for sample in other.samples)
    }


def share_of_tests(record: Record) -> float:
    """How much of its unit a record covers, parts of parts that were run too counted once."""
    widest = [
        (part, parts)
        for part, parts in record.samples
        if not any(
            parts % others == 0 and (part - other) % others == 0
            for other, others in record.samples - {(part, parts)}
        )
    ]
    return sum(1 / parts for _, parts in widest)


def unit_scores(
    reference: Records, tested: Records, facts: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """What is kept of every unit that both have run: ``facts``, counts, and the tests lost.

    A test that passes in the reference and has no outcome under test is lost. Tests whose programs
    have types that the tested executor lacks are left aside, and counted.
    """
    return {
        name: {**facts, **_unit_score(reference[name], tested[name])}
        for name in sorted(reference.keys() & tested.keys())
    }


def _unit_score(reference: Record, tested: Record) -> dict[str, Any]:
    before, after = _covered(reference, tested), _covered(tested, reference)
    aside = {i for i, event in after.items() if event.get("types")}
    passing = [i for i, e in before.items() if e["outcome"] == "passed" and i not in aside]
    events = {i: after.get(i, _NOT_RUN) for i in passing}
    lost = {i: event for i, event in sorted(events.items()) if event["outcome"] != "passed"}
    score: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "commits": list(tested.commits),
        "versions": list(tested.versions),
        "covered": round(min(share_of_tests(reference), share_of_tests(tested)), 4),
        "reference": _counts(before),
        "tested": _counts(after),
        "passed_in_reference": len(passing),
        "passed_in_both": len(passing) - len(lost),
        "lost": [_loss(identity, event) for identity, event in lost.items()],
    }
    if aside:
        score["aside"] = len(aside)
    return score


def _loss(identity: str, event: Mapping[str, Any]) -> dict[str, str]:
    error = _FOLDERS.sub("", event["error"])
    return {"id": identity, "outcome": event["outcome"], "error": error}


def add_reasons(units: Mapping[str, dict[str, Any]], reasons: Mapping[str, str]) -> None:
    """Notes with every lost test what it is due to: ``reasons`` by test id, or unexplained."""
    for unit in units.values():
        for event in unit["lost"]:
            event["because"] = reasons.get(event["id"], "unexplained")


def section(units: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Counts in total, the score, and the lost tests grouped by cause, of ``unit_scores``.

    Projects skip some tests by the name of the platform: the second share leaves out what is
    skipped under test alone.
    """
    lost = [event for unit in units.values() for event in unit["lost"]]
    passing = sum(unit["passed_in_reference"] for unit in units.values())
    skipped = sum(event["outcome"] == "skipped" for event in lost)
    kept = passing - len(lost)
    body: dict[str, Any] = {
        "totals": {side: _total(units, side) for side in ("reference", "tested")},
        "score": {
            "units": len(units),
            "passed_in_reference": passing,
            "passed_in_both": kept,
            "aside": sum(unit.get("aside", 0) for unit in units.values()),
            "skipped_under_test": skipped,
            "share": _share(kept, passing),
            "share_of_not_skipped": _share(kept, passing - skipped),
        },
        "causes": _by_cause(lost),
        "units": dict(sorted(units.items())),
    }
    reasons = Counter(event["because"] for event in lost if "because" in event)
    return body | ({"reasons": dict(reasons.most_common())} if reasons else {})


def _total(units: Mapping[str, dict[str, Any]], side: str) -> dict[str, int]:
    return dict(sorted(sum((Counter(unit[side]) for unit in units.values()), Counter()).items()))


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 5) if whole else None


def _counts(tests: Events) -> dict[str, int]:
    return dict(sorted(Counter(event["outcome"] for event in tests.values()).items()))


def _by_cause(lost: list[dict[str, Any]]) -> list[dict[str, Any]]:
    counts = Counter(cause(f"{event['outcome']}: {event['error']}") for event in lost)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [{"cause": name, "count": count} for name, count in ranked]


def update(path: Path, name: str, head: Mapping[str, Any], units: dict[str, Any]) -> None:
    """Writes section ``name`` of the scoreboard ``path``: ``units``, and those that it has already,
    if they were run under the same ``head`` and cover more. Other sections stay as they are."""
    board = json.loads(path.read_text()) if path.exists() else {}
    earlier = board.get(name, {})
    known = earlier["units"] if head.items() <= earlier.items() else {}
    wider = {
        unit: score
        for unit, score in known.items()
        if unit not in units or score["covered"] > units[unit]["covered"]
    }
    board[name] = {**head, **section(units | wider)}
    text = json.dumps(dict(sorted(board.items())), indent=1, ensure_ascii=False)
    path.write_text(text + "\n")
