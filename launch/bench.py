"""Compares the speed of the neuron platform with JAX's `cpu`, both in one run.

python -m launch.bench --out=bench.json
python -m launch.bench --rows='tiny*'
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from absl import app, flags

from launch.benchmarks import platforms, report, rows

_PLATFORM = flags.DEFINE_string("platform", "neuron", "JAX platform under test.")
_BASELINE = flags.DEFINE_string("baseline", "cpu", "JAX platform to compare with.")
_ROWS = flags.DEFINE_string("rows", "*", "Glob pattern of the rows to measure.")
_REPETITIONS = flags.DEFINE_integer(
    "repetitions", None, "Number of repetitions, instead of each row's own."
)
_OUT = flags.DEFINE_string("out", None, "JSON file to write the results to.")


def main(arguments: Sequence[str]) -> None:
    if arguments[1:]:
        raise app.UsageError(f"unexpected arguments {arguments[1:]}")
    settings = platforms.Settings(_PLATFORM.value, _BASELINE.value, _REPETITIONS.value)
    try:
        table = report.chosen(rows.ROWS, _ROWS.value)
    except ValueError as error:
        raise app.UsageError(str(error)) from None
    platforms.select(settings)
    print(report.HEADING, flush=True)
    findings = []
    for row in table:
        findings.append(report.measure(row, settings))
        print(findings[-1].line(), flush=True)
    if _OUT.value:
        report.write(Path(_OUT.value), settings, findings)


if __name__ == "__main__":
    app.run(main)
