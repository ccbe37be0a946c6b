"""A run's metrics: one JSON object per line."""

import json
from pathlib import Path
from typing import Any


class MetricsFile:
    """Records appended to a file, each flushed to the operating system at once.

    On opening, records of steps after `last_step` (which a resumed run computes again) and a
    line cut off by a kill are dropped; the file is replaced atomically.
    """

    def __init__(self, path: Path, last_step: int) -> None:
        kept = [line for line in _lines(path) if _step(line) <= last_step]
        fresh = path.with_suffix(".new")
        fresh.write_text("".join(line + "\n" for line in kept))
        fresh.replace(path)
        self._file = path.open("a")

    def write(self, **record: Any) -> None:
        """Appends a record; it must have a `step`."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All complete records of the file, in order."""
    return [json.loads(line) for line in _lines(path) if _step(line) < float("inf")]


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else []


def _step(line: str) -> float:
    """The record's step; beyond every step if the line is not a complete record."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
