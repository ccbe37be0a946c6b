"""``neuronjax sweep``: one workload on many machines, meshes, batches and dtypes."""

from __future__ import annotations

import argparse
from pathlib import Path

import jax

from neuronjax.cli.grid import add_grid, swept
from neuronjax.planning.plot import html, svg
from neuronjax.planning.workload import PROTOCOL

FOUND, NOTHING = 0, 1
"""Exit codes."""

DESCRIPTION = f"""\
Estimates a workload on every combination of targets, meshes, batches and dtypes. Prints a table
that marks those which no other beats in both time and cost. With --out, also writes sweep.json,
sweep.svg (a plot of time against cost), and sweep.html (the plot with its table). Combinations that
are impossible say why. Points are saved in that folder as they finish, so that the same command
resumes after an interruption.

{PROTOCOL}
Example: neuronjax sweep neuronjax.workloads:decode --targets=trn1.32xlarge \\
           --targets=trn2.48xlarge --mesh=model=8 --mesh=model=32 --batch=1,8,64 --out=runs/sweep

Exit codes: 0 something fits, 1 nothing does, 2 there is no such function, file or machine.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_grid(parser)
    parser.add_argument("--out", metavar="DIR", help="folder for the points and the plots")


def run(arguments: argparse.Namespace) -> int:
    """Prints the table, and writes the files."""
    jax.config.update("jax_platforms", "cpu")
    folder = Path(arguments.out) if arguments.out else None
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    result = swept(arguments, folder)
    print(result if arguments.format == "text" else result.to_json())
    if folder:
        (folder / "sweep.json").write_text(result.to_json() + "\n")
        (folder / "sweep.svg").write_text(svg(result))
        (folder / "sweep.html").write_text(html(result))
    return FOUND if result.front else NOTHING
