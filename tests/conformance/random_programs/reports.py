"""Lines of JSON, one per seed, and what they say together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def results(path: Path) -> list[dict[str, Any]]:
    """What is known from earlier runs."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def report(entries: Sequence[dict[str, Any]]) -> str:
    """Counts of findings by sort, with their seeds."""
    seeds: dict[str, list[int]] = {}
    for entry in entries:
        if entry["manner"]:
            seeds.setdefault(f"{entry['manner']} ({entry['kinds']})", []).append(entry["seed"])
    rows = [f"{sum(map(len, seeds.values()))} of {len(entries)} seeds have findings"]
    counts = Counter({manner: len(each) for manner, each in seeds.items()})
    rows += [f"{count:5d}  {manner}: {seeds[manner][:6]}" for manner, count in counts.most_common()]
    return "\n".join(rows)
