"""Points of a sweep in a file, a line each, so that an interrupted sweep goes on."""

from __future__ import annotations

import hashlib
import inspect
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from neuronjax.json_records import read_record
from neuronjax.planning.sweep import Choice, Estimating, Point
from neuronjax.planning.what_if import read_changes

FILE = "points.jsonl"


class Kept:
    """The points in a folder that were estimated in the same way: with the same options, and the
    same source of the workload's module. What the file has besides is left alone."""

    def __init__(self, folder: Path, estimating: Estimating, version: str) -> None:
        self._file = folder / FILE
        self._key = _key(estimating, version)
        self.points = dict(self._read())

    def add(self, point: Point) -> None:
        """Appends a point."""
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": self._key, **asdict(point)}) + "\n")

    def _read(self) -> list[tuple[Choice, Point]]:
        if not self._file.exists():
            return []
        read = map(self._point, self._file.read_text(encoding="utf-8").splitlines())
        return [(point.choice, point) for point in read if point]

    def _point(self, line: str) -> Point | None:
        """None for the point of another sweep, and for a line that was cut off."""
        try:
            entry: dict[str, Any] = json.loads(line)
            if entry.pop("key") != self._key:
                return None
            return read_record(Point, entry)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def _key(estimating: Estimating, version: str) -> str:
    make = inspect.unwrap(estimating.factory.make)
    source = inspect.getsourcefile(make) if hasattr(make, "__code__") else None
    options = {
        **vars(estimating),
        "factory": (estimating.factory.name, estimating.factory.settings),
    }
    parts = [version, repr(options), Path(source).read_text() if source else ""]
    if estimating.machine:
        parts.append(json.dumps(read_changes(estimating.machine), sort_keys=True, default=str))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
