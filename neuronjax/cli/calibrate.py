"""``neuronjax calibrate``: fits the timing model to a user's own measurements."""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax

from neuronjax.cli.workloads import settings
from neuronjax.errors import ConfigurationError, quoted
from neuronjax.parsing import parse_float
from neuronjax.planning.calibrate import Measured, calibrate
from neuronjax.planning.workload import load

HELPS, DOES_NOT_HELP = 0, 1
"""Exit codes."""
_NEEDED = ("workload", "target", "milliseconds")
_OPTIONAL = ("mesh", "batch", "dtype", "release")

DESCRIPTION = """\
Fits constants of the timing model that may differ between machines and releases to times that you
measured, within what they can physically be, and prints what moved and what that buys on
measurements that are left out. Constants that fewer than two measurements depend on stay.

MEASURED is a CSV file with the columns workload (MODULE:FUNCTION, as for `neuronjax estimate`),
target and milliseconds (of a step, with the host's call); mesh, batch, dtype and release are
optional, and every other column is a keyword of the function. All rows are of one kind of core and
of one release.

Example: neuronjax calibrate measured.csv --out=mine.toml
         neuronjax estimate neuronjax.workloads:decode --calibration=mine.toml --mesh=model=4

Exit codes: 0 measurements left out are predicted better, 1 they are not (no file is written), 2 the
file is damaged, or a time is impossible.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("measured", metavar="MEASURED", type=Path, help="a CSV file")
    parser.add_argument("--out", type=Path, metavar="FILE", help="TOML file for --calibration")


def run(arguments: argparse.Namespace) -> int:
    """Prints what moved, and writes the file if it helps."""
    jax.config.update("jax_platforms", "cpu")
    calibrated = calibrate(list(_measurements(arguments.measured)))
    print(calibrated)
    if not calibrated.helps:
        print("\nMeasurements left out are not predicted better: nothing was written.")
        return DOES_NOT_HELP
    if arguments.out is not None:
        arguments.out.write_text(calibrated.toml())
    return HELPS


def _measurements(path: Path) -> Iterator[Measured]:
    """The rows of a file. ConfigurationError: it is damaged, or of several releases."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigurationError(f"{quoted(str(path))} cannot be read: {error}.") from None
    missing = [name for name in _NEEDED if rows and name not in rows[0]]
    if missing or not rows:
        raise ConfigurationError(
            f"{quoted(str(path))} lacks {', '.join(missing) or 'rows'}; its columns are "
            f"{', '.join(_NEEDED)} and, optionally, {', '.join(_OPTIONAL)} and keywords of the "
            "function."
        )
    releases = {row.get("release") or "" for row in rows}
    if len(releases) > 1:
        raise ConfigurationError(
            f"{quoted(str(path))} has measurements of several releases: "
            f"{', '.join(sorted(map(repr, releases)))}. Calibrate each by itself."
        )
    for number, row in enumerate(rows, 2):
        yield _measurement(f"{path}:{number}", row)


def _measurement(where: str, row: Mapping[str, str]) -> Measured:
    if None in row or any(value is None for value in row.values()):
        raise ConfigurationError(f"{where} has another number of cells than the first line.")
    others = [
        f"{name}={value}"
        for name, value in row.items()
        if value and name not in (*_NEEDED, *_OPTIONAL)
    ]
    given = settings([f"{name}={row[name]}" for name in ("batch", "dtype") if row.get(name)])
    return Measured(
        factory=load(row["workload"], settings(others)),
        target=row["target"],
        milliseconds=_milliseconds(where, row["milliseconds"]),
        mesh=row.get("mesh") or None,
        given=given,
    )


def _milliseconds(where: str, text: str) -> float:
    value = parse_float(text)
    if not 0 < value < math.inf:
        raise ConfigurationError(
            f"{where}: milliseconds is {quoted(text)}, but must be a number greater than 0."
        )
    return value
