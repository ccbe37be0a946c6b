"""The times of programs over their rooflines, by kind and machine, as a table for documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

_LEAST_NS = 10_000
"""Of a roofline: below it, programs take what transfers and engines need to begin."""
_CHIPS = ("inf2", "trn1", "trn2", "trn3")


def table(entries: Sequence[Mapping[str, Any]]) -> str:
    """Rows of Markdown: for each kind the median and the worst ratio on each machine."""
    header = ["kind", "programs", *(f"{chip}, median / worst" for chip in _CHIPS)]
    rows = [header, ["---"] * len(header), *_rows(entries)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _rows(entries: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    for kind in sorted({entry["kinds"] for entry in entries}):
        ours = [entry for entry in entries if entry["kinds"] == kind and _is_long(entry)]
        cells = []
        for chip in _CHIPS:
            ratios = [each["ratio"] for each in ours if each["machine"].startswith(chip)]
            cells.append(f"{median(ratios):.1f} / {max(ratios):.1f}" if ratios else "")
        yield [kind.replace("_", " "), str(len(ours)), *cells]


def _is_long(entry: Mapping[str, Any]) -> bool:
    return "ratio" in entry and entry["ns"] / entry["ratio"] > _LEAST_NS
