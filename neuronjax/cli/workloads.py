"""Arguments that commands about workloads share."""

from __future__ import annotations

import argparse
from typing import Any

from neuronjax.cli.arguments import amount, whole
from neuronjax.errors import ConfigurationError, quoted
from neuronjax.parsing import parse_whole
from neuronjax.planning import what_if
from neuronjax.planning.depth import DEPTHS


def add_workload(parser: argparse.ArgumentParser) -> None:
    """The arguments that every command about workloads has."""
    parser.add_argument("workload", metavar="MODULE:FUNCTION", help="what makes the workload")
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="NAME=VALUE",
        help="a keyword of the function; numbers are passed as numbers",
    )  # fmt: skip
    add_pad(parser)
    parser.add_argument(
        "--lnc", type=whole(1), help="physical cores per logical core (default: the chip's)"
    )
    parser.add_argument(
        "--machine", metavar="FILE",
        help="TOML file, or its text, that changes the target's records (what if)",
    )  # fmt: skip
    parser.add_argument(
        "--calibration", metavar="FILE", help="TOML file that `neuronjax calibrate` wrote"
    )
    parser.add_argument(
        "--layers", type=whole(1), help="layers of the model, if the function takes them"
    )
    parser.add_argument(
        "--depths", default=",".join(map(str, DEPTHS)), metavar="A,B",
        help="depths to compile instead of a deep model (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--price", type=amount, metavar="USD",
        help="per instance and hour (default: AWS's price, on demand or of a capacity block)",
    )  # fmt: skip
    parser.add_argument("--prices", metavar="FILE", help="TOML file of prices by target")
    parser.add_argument(
        "--while_trips", type=whole(0), default=1, metavar="N",
        help="iterations of loops whose number depends on data (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--faults",
        default="",
        metavar="FAULTS",
        help="slow cores and links, as in NEURONJAX_FAULTS",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")


def machine_given(arguments: argparse.Namespace) -> what_if.Given:
    """The changes of --machine and --calibration. ConfigurationError: a file is damaged, or both
    change constants."""
    if arguments.calibration is None:
        return arguments.machine
    changes = dict(what_if.read_changes(arguments.machine)) if arguments.machine else {}
    constants = what_if.read_changes(arguments.calibration)
    if set(constants) != {"calibration"} or "calibration" in changes:
        raise ConfigurationError(
            f"--calibration {quoted(arguments.calibration)} must have the table [calibration] "
            "alone, and --machine none."
        )
    return {**changes, **constants}


def add_pad(parser: argparse.ArgumentParser) -> None:
    """Whether sizes may be rounded up to what the mesh divides."""
    parser.add_argument(
        "--pad", action="store_true",
        help="round heads, vocabulary and the like up to what the mesh divides (if the function "
        "takes pad)",
    )  # fmt: skip


def settings(texts: list[str]) -> dict[str, Any]:
    """The values of ``--set`` as keyword arguments. ConfigurationError: a value is malformed."""
    keywords = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigurationError(f"--set {quoted(text)} is malformed; write it as NAME=VALUE.")
        keywords[name] = _value(value)
    return keywords


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
    shallow, deep = parse_whole(first), parse_whole(second)
    if not shallow or not deep or shallow >= deep:
        raise ConfigurationError(
            f"--depths {quoted(text)} is malformed; write two numbers, the smaller one first, "
            "such as 2,3."
        )
    return shallow, deep
