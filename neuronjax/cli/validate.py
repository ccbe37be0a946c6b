"""``neuronjax validate``: the timing model beside public measurements."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from neuronjax.cli.command import Command
from neuronjax.timing.validation import report

_DESCRIPTION = """\
Predicts public measurements of kernels, instructions and collectives with the timing model and
prints predicted and published times, their ratio, and the errors of each group: mean, median, 95th
percentile and worst, apart for points that constants were fitted to and for the others.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, help="JSON file for the results")


def run(arguments: argparse.Namespace) -> int:
    rows = report.rows()
    print(report.text(rows))
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report.as_json(rows), indent=2) + "\n")
    return 0


COMMAND = Command(
    help="compare the timing model with public measurements",
    description=_DESCRIPTION,
    add_arguments=add_arguments,
    run=run,
)
