"""``neuronjax estimate``: what one step of a program would take on a machine."""

from __future__ import annotations

import argparse
from typing import Any

import jax

from neuronjax.cli.command import Command
from neuronjax.errors import ConfigurationError
from neuronjax.planning.depth import DEPTHS
from neuronjax.planning.estimate import DEFAULT_TARGET, of_factory, setting_of
from neuronjax.planning.tracing import abstract_mesh
from neuronjax.planning.workload import PROTOCOL, load

FITS, DOES_NOT_FIT = 0, 1
"""Exit codes."""

_DESCRIPTION = f"""\
Prints what one call of a function would take on a machine: time, MFU, what limits it, memory and
price. Nothing is allocated, compiled to code or run.

{PROTOCOL}
Example: neuronjax estimate launch.workloads:llama_decode --target=trn1.32xlarge --mesh=model=32 \\
           --set model=70b --set context=4096 --batch=1

Exit codes: 0 it fits, 1 it does not fit a core's memory (the estimate is printed all the same, with
what to change), 2 there is no such function, machine or mesh.
"""


def add_workload(parser: argparse.ArgumentParser) -> None:
    """The arguments that every command about workloads has."""
    parser.add_argument("workload", metavar="MODULE:FUNCTION", help="what makes the workload")
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="NAME=VALUE",
        help="a keyword of the function; numbers become numbers",
    )  # fmt: skip
    parser.add_argument("--lnc", type=int, help="physical cores per logical core (default: chip's)")
    parser.add_argument(
        "--machine", metavar="FILE", help="TOML file that changes the target's records: what if"
    )
    parser.add_argument("--layers", type=int, help="layers of the model, if the function takes it")
    parser.add_argument(
        "--depths", default=",".join(map(str, DEPTHS)), metavar="A,B",
        help="depths that are compiled instead of a deep model (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--price", type=float, metavar="USD", help="of an instance and hour")
    parser.add_argument(
        "--while_trips", type=int, default=1, metavar="N",
        help="trips of loops whose number depends on data (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--format", choices=("text", "json"), default="text")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_workload(parser)
    parser.add_argument("--target", default=DEFAULT_TARGET, help="(default: %(default)s)")
    parser.add_argument("--mesh", help="sizes by axis, such as data=4,model=8 (default: one core)")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--dtype")


def run(arguments: argparse.Namespace) -> int:
    """Prints one estimate."""
    jax.config.update("jax_platforms", "cpu")
    factory = load(arguments.workload, settings(arguments.settings))
    setting = setting_of(arguments.target, arguments.lnc, arguments.machine, arguments.while_trips)
    found = of_factory(
        factory,
        setting,
        abstract_mesh(arguments.mesh),
        price=arguments.price,
        layers=arguments.layers,
        depths=depths(arguments.depths),
        batch=arguments.batch,
        dtype=arguments.dtype,
    )
    print(found if arguments.format == "text" else found.to_json())
    return FITS if found.fits else DOES_NOT_FIT


def settings(texts: list[str]) -> dict[str, Any]:
    """``--set`` as keywords. ConfigurationError: malformed."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigurationError(f"--set {text!r} is malformed; write it as NAME=VALUE.")
        found[name] = _value(value)
    return found


def _value(text: str) -> Any:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def depths(text: str) -> tuple[int, int]:
    """Two depths. ConfigurationError: malformed."""
    first, _, second = text.partition(",")
    if not first.isdecimal() or not second.isdecimal():
        raise ConfigurationError(f"--depths {text!r} is malformed; write two numbers as 2,3.")
    return int(first), int(second)


COMMAND = Command(
    help="time, memory and price of a step on a machine, without running it",
    description=_DESCRIPTION,
    add_arguments=add_arguments,
    run=run,
)
