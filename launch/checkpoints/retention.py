"""Which checkpoints to keep, and how to delete the others."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from launch.checkpoints.manifest import flush

GOING = ".going"  # suffix of a checkpoint that is being deleted


@dataclass(frozen=True)
class Retention:
    """Keeps the `newest` latest checkpoints, and those whose step is a multiple of `every`."""

    newest: int
    every: int | None = None

    def surplus(self, steps: Iterable[int]) -> list[int]:
        """The steps to delete, oldest first."""
        ordered = sorted(steps)
        return [
            step
            for step in ordered[: max(len(ordered) - self.newest, 0)]
            if self.every is None or step % self.every
        ]


def delete(directory: Path, steps: Iterable[int]) -> None:
    """Deletes the checkpoints: each is renamed first, so that none is ever visible in part."""
    going = [(directory / str(step)).rename(directory / f"{step}{GOING}") for step in steps]
    flush(directory)
    for path in going:
        shutil.rmtree(path)
