"""``neuronjax sweep``: one workload on many machines, meshes, batches and dtypes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import jax

from neuronjax.cli.arguments import whole
from neuronjax.cli.command import Command
from neuronjax.cli.workloads import add_workload, depths, settings
from neuronjax.planning.estimate import DEFAULT_TARGET
from neuronjax.planning.plot import svg
from neuronjax.planning.prices import read_prices
from neuronjax.planning.sweep import Grid, Point, sweep
from neuronjax.planning.workload import PROTOCOL, load

FOUND, NOTHING = 0, 1
"""Exit codes."""

_DESCRIPTION = f"""\
Estimates a workload on every combination of targets, meshes, batches and dtypes. Prints a table in
which those are marked that no other beats in both time and cost; with --out also sweep.json and
sweep.svg, a plot of time against cost. Combinations that are impossible say why.

{PROTOCOL}
Example: neuronjax sweep launch.workloads:llama_decode --set model=8b --targets=trn1.32xlarge \\
           --targets=trn2.48xlarge --mesh=model=8 --mesh=model=32 --batch=1,8,64 --out=runs/sweep

Exit codes: 0 something fits, 1 nothing does, 2 there is no such function, file or machine.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_workload(parser)
    parser.add_argument("--targets", default=DEFAULT_TARGET, metavar="A,B,…")
    parser.add_argument(
        "--mesh", dest="meshes", action="append", metavar="AXES", help="may be given several times"
    )
    parser.add_argument("--batch", dest="batches", type=_numbers, default=[None], metavar="A,B,…")
    parser.add_argument("--dtype", dest="dtypes", metavar="A,B,…")
    parser.add_argument("--out", metavar="DIR", help="folder for sweep.json and sweep.svg")


def _numbers(text: str) -> list[int]:
    return [whole(1)(part) for part in text.split(",")]


def run(arguments: argparse.Namespace) -> int:
    """Prints the table, and writes the files."""
    jax.config.update("jax_platforms", "cpu")
    result = sweep(
        load(arguments.workload, settings(arguments.settings)),
        Grid(
            targets=arguments.targets.split(","),
            meshes=arguments.meshes or [None],
            batches=arguments.batches,
            dtypes=arguments.dtypes.split(",") if arguments.dtypes else [None],
        ),
        lnc=arguments.lnc,
        machine=arguments.machine,
        price=arguments.price,
        prices=read_prices(arguments.prices) if arguments.prices else {},
        layers=arguments.layers,
        depths=depths(arguments.depths),
        while_trips=arguments.while_trips,
        faults=arguments.faults,
        done=_tell,
    )
    print(result if arguments.format == "text" else result.to_json())
    if arguments.out:
        folder = Path(arguments.out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "sweep.json").write_text(result.to_json() + "\n")
        (folder / "sweep.svg").write_text(svg(result))
    return FOUND if result.front else NOTHING


def _tell(point: Point) -> None:
    print(f"{point.label}: {point.error or 'done'}", file=sys.stderr)


COMMAND = Command(
    help="estimates over targets, meshes, batches and dtypes; which are worth it",
    description=_DESCRIPTION,
    add_arguments=add_arguments,
    run=run,
)
