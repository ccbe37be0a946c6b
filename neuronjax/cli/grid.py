"""Arguments of commands that estimate a workload on every combination of machines and meshes."""

from __future__ import annotations

import argparse
import sys

from neuronjax.cli.arguments import whole
from neuronjax.cli.workloads import add_workload, depths, settings
from neuronjax.planning.estimate import DEFAULT_TARGET
from neuronjax.planning.prices import read_prices
from neuronjax.planning.sweep import Grid, Point, Sweep, sweep
from neuronjax.planning.workload import load


def add_grid(parser: argparse.ArgumentParser) -> None:
    """A workload, and what it is combined with."""
    add_workload(parser)
    parser.add_argument("--targets", default=DEFAULT_TARGET, metavar="A,B,…")
    parser.add_argument(
        "--mesh", dest="meshes", action="append", metavar="AXES", help="may be given several times"
    )
    parser.add_argument("--batch", dest="batches", type=_numbers, default=[None], metavar="A,B,…")
    parser.add_argument("--dtype", dest="dtypes", metavar="A,B,…")


def _numbers(text: str) -> list[int]:
    return [whole(1)(part) for part in text.split(",")]


def swept(arguments: argparse.Namespace) -> Sweep:
    """The estimates of all combinations; each is told to stderr when it is there."""
    return sweep(
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


def _tell(point: Point) -> None:
    print(f"{point.label}: {point.error or 'done'}", file=sys.stderr)
