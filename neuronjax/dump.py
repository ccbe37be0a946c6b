"""Dumps of programs at the stages of the compiler, as text files.

A program leaves ``0001.NAME.partition.mlir`` (one core's share, with collectives),
``0001.NAME.legalize.mlir`` (with the chip's numerics) and ``0001.NAME.lower.neuron`` (engine
instructions) behind, and ``0001.NAME.PASS.txt`` for each pass below that was asked for.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from neuronjax.errors import ConfigurationError

SUFFIXES = {"partition": "mlir", "legalize": "mlir", "lower": "neuron"}
"""Stage -> suffix of its files, in the order of the stages."""
_OF_PASSES = "txt"


@dataclass
class Dump:
    """Writes the stages of programs into a folder, numbered in the order of their compilation.

    Raises:
      ConfigurationError: the folder cannot be written to.
    """

    folder: Path
    _written: int = field(default=0)

    def __post_init__(self) -> None:
        with _naming(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.folder).close()

    def next_program(self, name: str) -> ProgramDump:
        """The files for the stages of the next program."""
        self._written += 1
        safe = re.sub(r"[^\w.-]", "_", name)
        return ProgramDump(self.folder, f"{self._written:04d}.{safe}")


@dataclass(frozen=True)
class ProgramDump:
    """The files of one program."""

    folder: Path
    stem: str

    def write(self, stage: str, text: str) -> None:
        """Writes a stage, or the result of a pass.

        Raises:
          ConfigurationError: the folder cannot be written to.
        """
        with _naming(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / f"{self.stem}.{stage}.{_suffix(stage)}").write_text(text)


@contextlib.contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """Names the folder where something in it cannot be written."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"NEURONJAX_DUMP_TO={str(folder)!r} cannot be written to: {error.strerror}."
            " Name a folder that you can write to, or unset it."
        ) from None


def dumped(folder: Path, stage: str) -> Iterator[tuple[str, str]]:
    """Names and texts of a folder's programs at one stage, in the order of compilation."""
    ending = f".{stage}.{_suffix(stage)}"
    for path in sorted(folder.glob(f"*{ending}")):
        yield path.name.split(".", 1)[1].removesuffix(ending), path.read_text()


def _suffix(stage: str) -> str:
    return SUFFIXES.get(stage, _OF_PASSES)
