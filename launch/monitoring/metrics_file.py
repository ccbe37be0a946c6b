"""A run's metrics: one JSON object per line."""

import json
from pathlib import Path
from typing import Any

from launch.errors import OutputError


class MetricsFile:
    """Records appended to a file, each handed to the operating system at once.

    On opening, records of steps after `last_step` (which a resumed run computes again) and a
    line cut off by a kill are dropped; the file is replaced atomically. Raises OutputError where
    nothing can be written.
    """

    def __init__(self, path: Path, last_step: int) -> None:
        self._path = path
        try:
            kept = [line for line in _lines(path) if _step(line) <= last_step]
            fresh = path.with_suffix(".new")
            fresh.write_text("".join(line + "\n" for line in kept))
            fresh.replace(path)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise self._failure(error) from error

    def write(self, **record: Any) -> None:
        """Appends a record; it must have a `step`."""
        try:
            self._file.write((json.dumps(record) + "\n").encode())
        except OSError as error:
            raise self._failure(error) from error

    def close(self) -> None:
        self._file.close()

    def _failure(self, error: OSError) -> OutputError:
        return OutputError(
            f"cannot write to {self._path}: {error.strerror}. Checkpoints are untouched. Free some "
            "space or give another --checkpoint_dir, then start again."
        )


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
