"""``neuronjax profile``: runs a script and shows where its time on the device would go."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import jax

from neuronjax import options, recording
from neuronjax.cli import scripts
from neuronjax.cli.arguments import percent
from neuronjax.errors import ConfigurationError
from neuronjax.machine.machine import Machine
from neuronjax.profiling import compare, store, text

RECORDED, NOTHING, RAISED = 0, 1, 2
"""Exit codes."""

DEFAULT_FOLDER = "profile"

DESCRIPTION = """\
Runs a script on an emulated machine, times every program as a NeuronCore would run it, prints where
the time goes, and writes to a folder:

  report.html    a page: timeline, roofline, engines, memory, costs by kernel and line, findings
  trace.json     for ui.perfetto.dev and chrome://tracing
  trace.pftrace  the same in Perfetto's own format
  summary.json   Neuron Explorer's metrics; parquet/ has its tables, if pyarrow is installed
  profile.json   all of it, for --compare

The script's standard output goes to standard error. Values are computed as usual; with
--executor=none they are zeros, which is faster, and enough for scripts that do not look at them.

Examples: neuronjax profile --out=before train.py --steps=3
          neuronjax profile --compare before after

Exit codes: 0 something was recorded, 1 no program ran, 2 the script raised an exception (what ran
until then is reported), or arguments were wrong.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", help="machine, such as trn1.32xlarge (default: as configured)")
    parser.add_argument(
        "--out", metavar="DIR", default=DEFAULT_FOLDER, help="the folder (default: %(default)s)"
    )
    parser.add_argument(
        "--executor", choices=("host", "engine", "none"), help="who computes values"
    )
    parser.add_argument(
        "--compare", action="store_true", help="compare two folders: SCRIPT and ARG are their names"
    )
    parser.add_argument(
        "--least_change", type=percent, default=compare.LEAST_CHANGE, metavar="PERCENT",
        help="smaller changes are left out of a comparison's tables (default: 1)",
    )  # fmt: skip
    scripts.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Profiles a script in this process, which should end soon after, or compares two profiles."""
    if arguments.compare:
        return _compare(arguments)
    scripts.check(arguments.script, arguments.module)
    given = {
        name: value
        for name in ("target", "executor")
        if (value := getattr(arguments, name)) is not None
    }
    chosen = options.load(**given)
    Machine.create(chosen.target, chosen.lnc)
    folder = Path(arguments.out).absolute()
    store.prepare(folder)
    with scripts.stdout_on_stderr() as out:
        options.pin(profile_to=str(folder), **given)
        jax.config.update("jax_platforms", "neuron,cpu")
        outcome = scripts.run(arguments.script, arguments.arguments, arguments.module, 0)
        recorded = recording.end_process_recording()
        if recorded is not None:
            out.write(f"{text.text(recorded)}\n\n{folder / store.REPORT}\n")
        out.flush()
    if outcome.error is not None:
        return RAISED
    if recorded is None or not recorded.runs:
        print(f"neuronjax profile: {scripts.NO_PROGRAM}", file=sys.stderr)
        return NOTHING
    return RECORDED


def _compare(arguments: argparse.Namespace) -> int:
    folders = [Path(folder) for folder in (arguments.script, *arguments.arguments)]
    if len(folders) != 2:
        raise ConfigurationError(
            f"--compare takes two folders of profiles, but got {len(folders)}."
        )
    before, after = map(store.read, folders)
    print(compare.text(before, after, arguments.least_change))
    out = Path(arguments.out) / "compare.html"
    store.write_comparison(before, after, out)
    print(f"\n{out}")
    return RECORDED
