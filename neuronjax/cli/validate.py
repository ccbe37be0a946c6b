"""``neuronjax validate``: compares the timing model with public measurements."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import jax

from neuronjax.errors import ConfigurationError, quoted
from neuronjax.planning.published import PROTOCOL, PublishedModel, load_published, predictors_of
from neuronjax.timing.validation import report

DESCRIPTION = f"""\
Predicts public measurements of kernels, instructions and collectives with the timing model, and of
whole models with --models, and prints predicted and published times, their ratio, and the errors of
each group: mean, median, 95th percentile and worst, separately for points that constants were
fitted to and for the others. Constants fitted to a point are also fitted without it; a second
column shows the resulting ratio.

--models: {PROTOCOL}
Example: neuronjax validate --models launch.validation_models:MEASUREMENTS --only M4
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    parser.add_argument("--models", metavar="MODULE:TABLE", help="whole models to predict as well")
    parser.add_argument(
        "--only", metavar="REGEX", help="only points whose names begin with a match"
    )


def run(arguments: argparse.Namespace) -> int:
    wanted = _pattern(arguments.only or "")
    known = dict(report.predictors())
    published: tuple[PublishedModel, ...] = ()
    if arguments.models:
        jax.config.update("jax_platforms", "cpu")
        sys.path.insert(0, str(Path.cwd()))
        published = load_published(arguments.models)
        known |= predictors_of(published)
    rows = list(report.rows(known, lambda point: wanted.match(point.name)))
    if not rows:
        first = dict.fromkeys(point.name.partition(" ")[0] for point in known)
        raise ConfigurationError(
            f"--only {quoted(arguments.only)} matches the beginning of no point's name; names "
            f"begin with {', '.join(first)}."
        )
    points = {row.point for row in rows}
    classes = {model.point: model.traits for model in published if model.point in points}
    print(report.text(rows, classes))
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(report.as_json(rows, classes), indent=2, ensure_ascii=False)
        arguments.out.write_text(text + "\n", encoding="utf-8")
    return 0


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigurationError(
            f"--only {quoted(text)} is not a regular expression: {error}."
        ) from None
