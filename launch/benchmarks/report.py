"""Measuring rows and telling about them."""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import Any

from launch.benchmarks.paired import Measurement
from launch.benchmarks.platforms import Settings
from launch.benchmarks.rows import Row

HEADING = f"{'benchmark':26s}{'value':>10s}{'quartiles':>20s}{'target':>10s} unit  verdict"


@dataclass(frozen=True)
class Finding:
    """A measured row; `error` says why there is no measurement."""

    row: Row
    measurement: Measurement | None
    error: str = ""

    @property
    def met(self) -> bool:
        return self.measurement is not None and self.measurement.value <= self.row.target

    def line(self) -> str:
        head, tail = f"{self.row.name:26s}", f"{self.row.target:10.2f} {self.row.unit:5s} "
        if self.measurement is None:
            why = (self.error.splitlines() or [""])[0]
            return f"{head}{'-':>10s}{'-':>20s}{tail}failed: {why}"
        measured = self.measurement
        spread = f"{measured.low:.3f} … {measured.high:.3f}"
        verdict = "met" if self.met else "missed"
        return f"{head}{measured.value:10.3f}{spread:>20s}{tail}{verdict}"

    def record(self) -> dict[str, Any]:
        return {
            "name": self.row.name,
            "target": self.row.target,
            "unit": self.row.unit,
            "met": self.met,
            "measurement": asdict(self.measurement) if self.measurement else None,
            "error": self.error,
        }


def chosen(rows: Iterable[Row], pattern: str) -> list[Row]:
    """The rows whose names match the glob `pattern`.

    Raises:
      ValueError: there is none.
    """
    rows = tuple(rows)
    chosen = [row for row in rows if fnmatch(row.name, pattern)]
    if not chosen:
        names = ", ".join(row.name for row in rows)
        raise ValueError(f"no row matches {pattern!r}; the rows are: {names}")
    return chosen


def measure(row: Row, settings: Settings) -> Finding:
    """Measures one row; what it raises becomes the finding's error."""
    try:
        return Finding(row, row.measure(settings, settings.repetitions or row.repetitions))
    except Exception as problem:  # a backend may raise anything, and the other rows must run
        return Finding(row, None, f"{type(problem).__name__}: {problem}")


def write(path: Path, settings: Settings, findings: Iterable[Finding]) -> None:
    """Writes findings with date, versions and settings to a JSON file."""
    document = {
        "date": datetime.date.today().isoformat(),
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")},
        },
        "settings": asdict(settings),
        "rows": [finding.record() for finding in findings],
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
