"""Arguments of commands that estimate a workload on every combination of machines and meshes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import neuronjax
from neuronjax.cli.arguments import whole
from neuronjax.cli.workloads import add_workload, depths, machine_given, settings
from neuronjax.planning.estimate import DEFAULT_TARGET
from neuronjax.planning.kept import Kept
from neuronjax.planning.prices import read_prices
from neuronjax.planning.runners import Runner, in_processes, on_ray
from neuronjax.planning.sweep import DIED, Choice, Estimating, Grid, Point, Sweep, sweep
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
    side = parser.add_mutually_exclusive_group()
    side.add_argument(
        "--workers", type=whole(1, 1024), default=1, metavar="N",
        help="estimates at a time, each in a process of its own (default: one)",
    )  # fmt: skip
    side.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="estimate on a Ray cluster; local starts one on this machine",
    )


def _numbers(text: str) -> list[int]:
    return [whole(1)(part) for part in text.split(",")]


def swept(arguments: argparse.Namespace, folder: Path | None = None) -> Sweep:
    """The estimates of all combinations; each is told to stderr when it is there.

    With a folder those that it has are not estimated again, and new ones are added to it, except
    those whose process died.
    """
    grid = Grid(
        targets=arguments.targets.split(","),
        meshes=arguments.meshes or [None],
        batches=arguments.batches,
        dtypes=arguments.dtypes.split(",") if arguments.dtypes else [None],
    )
    estimating = Estimating(
        factory=load(arguments.workload, settings(arguments.settings)),
        lnc=arguments.lnc,
        machine=machine_given(arguments),
        price=arguments.price,
        prices=read_prices(arguments.prices) if arguments.prices else {},
        layers=arguments.layers,
        depths=depths(arguments.depths),
        while_trips=arguments.while_trips,
        faults=arguments.faults,
        pad=arguments.pad,
    )
    kept = Kept(folder, estimating, neuronjax.__version__) if folder else None
    known = kept.points if kept else {}
    choices = list(grid)
    missing = sum(choice not in known for choice in choices)
    if missing < len(choices):
        kept_points = len(choices) - missing
        print(f"{kept_points} of {len(choices)} points are already in {folder}", file=sys.stderr)
    return sweep(
        estimating, grid, runner=_runner(arguments), kept=known, done=_progress(missing, kept)
    )


def _runner(arguments: argparse.Namespace) -> Runner[Choice, Point]:
    return on_ray(arguments.ray) if arguments.ray else in_processes(arguments.workers)


def _progress(count: int, kept: Kept | None) -> Callable[[Point], None]:
    ended = 0

    def tell(point: Point) -> None:
        nonlocal ended
        ended += 1
        print(f"[{ended}/{count}] {point.label}: {point.error or 'done'}", file=sys.stderr)
        if kept and point.error != DIED:
            kept.add(point)

    return tell
