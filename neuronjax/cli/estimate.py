"""``neuronjax estimate``: time, memory and price of a program's step on a machine."""

from __future__ import annotations

import argparse
from pathlib import Path

import jax

from neuronjax.cli.arguments import whole
from neuronjax.cli.workloads import add_workload, depths, machine_given, settings
from neuronjax.planning.estimate import DEFAULT_TARGET, of_factory, setting_of
from neuronjax.planning.prices import price_for, read_prices
from neuronjax.planning.tracing import abstract_mesh
from neuronjax.planning.workload import PROTOCOL, load

FITS, DOES_NOT_FIT = 0, 1
"""Exit codes."""

DESCRIPTION = f"""\
Prints what one call of a function would take on a machine: time, MFU, what limits it, memory and
price. Nothing is allocated or run, and no code is generated.

{PROTOCOL}
Example: neuronjax estimate neuronjax.workloads:decode --target=trn1.32xlarge --mesh=model=32 \\
           --set depth=64 --set heads=64 --set context=8192 --batch=4

Exit codes: 0 it fits, 1 it does not fit in a core's memory (the estimate is printed anyway, with
what to change), 2 there is no such function, machine or mesh.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_workload(parser)
    parser.add_argument("--target", default=DEFAULT_TARGET, help="(default: %(default)s)")
    parser.add_argument("--mesh", help="sizes by axis, such as data=4,model=8 (default: one core)")
    parser.add_argument("--batch", type=whole(1))
    parser.add_argument("--dtype")
    parser.add_argument(
        "--roofline", type=Path, metavar="FILE", help="write an SVG of the step under its roofline"
    )
    parser.add_argument("--flags", help="compiler flags (default: NEURON_CC_FLAGS)")


def run(arguments: argparse.Namespace) -> int:
    """Prints one estimate."""
    jax.config.update("jax_platforms", "cpu")
    factory = load(arguments.workload, settings(arguments.settings))
    setting = setting_of(
        arguments.target,
        arguments.lnc,
        machine_given(arguments),
        arguments.while_trips,
        arguments.faults,
        arguments.flags,
    )
    prices = read_prices(arguments.prices) if arguments.prices else {}
    estimate = of_factory(
        factory,
        setting,
        abstract_mesh(arguments.mesh),
        price=price_for(setting.machine.target, arguments.price, prices),
        layers=arguments.layers,
        depths=depths(arguments.depths),
        batch=arguments.batch,
        dtype=arguments.dtype,
        pad=arguments.pad or None,
    )
    if arguments.roofline:
        arguments.roofline.write_text(estimate.roofline_svg())
    print(estimate if arguments.format == "text" else estimate.to_json())
    return FITS if estimate.fits else DOES_NOT_FIT
