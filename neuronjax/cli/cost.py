"""``neuronjax cost``: what a training run, or a million tokens, costs on which machine."""

from __future__ import annotations

import argparse

import jax

from neuronjax.cli.arguments import amount, percent, whole
from neuronjax.cli.grid import add_grid, swept
from neuronjax.errors import quoted
from neuronjax.planning.cost import ON_DEMAND, Purchase, Rival, cost
from neuronjax.planning.prices import read_prices
from neuronjax.planning.workload import PROTOCOL

OFFERED, NOTHING = 0, 1
"""Exit codes."""
MILLION = 1e6

DESCRIPTION = f"""\
Prints what an amount of work costs on every combination of targets, meshes, batches and dtypes,
cheapest first: a million tokens (or samples) as the workload counts them, or the steps of a
training run. Whole instances are paid for, in every way that has a public price (on demand,
reserved for a year, capacity blocks) and in those that you give discounts for.
Each interruption (spot) loses the time to restart and half of the time between two checkpoints, for
all instances of the job.

{PROTOCOL}
Example: neuronjax cost neuronjax.workloads:decode --batch=1,8,64 \\
           --targets=trn1.32xlarge,inf2.48xlarge --mesh=model=8 --reserved=40 \\
           --spot=65 --interruptions=0.5 --versus=p4d.24xlarge=32.77,2400

Prices come from --price, from a --prices file, or else are AWS's; each is printed with its kind,
region, source and date. A machine without a price is named and left out.
Exit codes: 0 there is an offer, 1 there is none, 2 no such function, file or machine.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_grid(parser)
    work = parser.add_mutually_exclusive_group()
    work.add_argument("--steps", type=whole(1), help="steps of a training run")
    work.add_argument(
        "--amount", type=amount, default=MILLION, metavar="N",
        help="tokens or samples, as the workload counts them (default: a million)",
    )  # fmt: skip
    parser.add_argument(
        "--utilisation", type=percent, default=1.0, metavar="PERCENT",
        help="share of the time that instances work; the rest is paid for, too (default: 100)",
    )  # fmt: skip
    for flag, what in (
        ("reserved", "reserved instances"),
        ("savings_plan", "a savings plan"),
        ("spot", "spot instances"),
    ):
        parser.add_argument(
            f"--{flag}", type=percent, metavar="PERCENT", help=f"discount for {what}"
        )
    parser.add_argument(
        "--interruptions", type=amount, default=0.0, metavar="N",
        help="interruptions per day of each spot instance (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--restart_minutes", type=amount, default=10.0, metavar="N",
        help="from an interruption until work resumes (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--checkpoint_minutes", type=amount, default=30.0, metavar="N",
        help="time between two checkpoints (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--versus", type=_rival, action="append", default=[], metavar="NAME=USD,RATE",
        help="another machine, such as a GPU server: price per hour, units of work per second",
    )  # fmt: skip


def _rival(text: str) -> Rival:
    name, _, numbers = text.partition("=")
    usd, comma, rate = numbers.partition(",")
    if not name or not comma:
        raise argparse.ArgumentTypeError(
            f"{quoted(text)} is malformed; write it as NAME=USD,RATE, such as p4d=32.77,2400"
        )
    return Rival(name=name, usd_per_hour=amount(usd), rate=amount(rate))


def run(arguments: argparse.Namespace) -> int:
    """Prints the table."""
    jax.config.update("jax_platforms", "cpu")
    costs = cost(
        swept(arguments),
        prices=read_prices(arguments.prices) if arguments.prices else None,
        amount=arguments.steps or arguments.amount,
        steps=arguments.steps is not None,
        utilisation=arguments.utilisation,
        purchases=_purchases(arguments),
        rivals=arguments.versus,
    )
    print(costs if arguments.format == "text" else costs.to_json())
    return OFFERED if len(costs.offers) > len(arguments.versus) else NOTHING


def _purchases(arguments: argparse.Namespace) -> list[Purchase]:
    committed = [
        Purchase(name=f"{name} (-{discount:.0%})", discount=discount)
        for name, discount in (
            ("reserved", arguments.reserved),
            ("savings plan", arguments.savings_plan),
        )
        if discount is not None
    ]
    spot = arguments.spot
    interrupted = [] if spot is None else [
        Purchase(
            name=f"spot (-{spot:.0%})",
            discount=spot,
            interruptions_per_day=arguments.interruptions,
            restart_hours=arguments.restart_minutes / 60,
            checkpoint_hours=arguments.checkpoint_minutes / 60,
        )
    ]  # fmt: skip
    return [ON_DEMAND, *committed, *interrupted]
