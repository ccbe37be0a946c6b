"""``neuronjax COMMAND …``: parses the command line and runs the command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from neuronjax import __version__
from neuronjax.cli import (
    completion,
    cost,
    doctor,
    estimate,
    fit,
    launch,
    lint,
    lower,
    ls,
    monitor,
    nccom,
    nki,
    profile,
    replay,
    sweep,
    top,
    validate,
)
from neuronjax.cli.command import Command
from neuronjax.errors import NeuronError

COMMANDS: dict[str, Command] = {
    "completion": completion.COMMAND,
    "cost": cost.COMMAND,
    "doctor": doctor.COMMAND,
    "estimate": estimate.COMMAND,
    "fit": fit.COMMAND,
    "launch": launch.COMMAND,
    "lint": lint.COMMAND,
    "lower": lower.COMMAND,
    "ls": ls.COMMAND,
    "monitor": monitor.COMMAND,
    "nccom": nccom.COMMAND,
    "nki": nki.COMMAND,
    "profile": profile.COMMAND,
    "replay": replay.COMMAND,
    "sweep": sweep.COMMAND,
    "top": top.COMMAND,
    "validate": validate.COMMAND,
}
"""Name -> command. A new command is a module in this package and a row here."""

EXIT_ERROR = 2
"""The exit code of errors, which is argparse's for invalid arguments."""


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    whole = argparse.ArgumentParser(
        prog="neuronjax",
        description="Tools for JAX programs that are meant for AWS Trainium and Inferentia.",
    )
    whole.add_argument("--version", action="version", version=f"neuronjax {__version__}")
    words = whole.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        subparser = words.add_parser(
            name,
            help=command.help,
            description=command.description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(subparser)
        subparser.set_defaults(command=command, commands=words.choices)
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line, by default that of the process, and returns the exit code."""
    parsed = parser().parse_args(arguments)
    try:
        return parsed.command.run(parsed)
    except NeuronError as error:
        print(f"neuronjax: {error}", file=sys.stderr)
    except OSError as error:  # a file that cannot be read or written
        print(f"neuronjax: {error.filename or 'output'}: {error.strerror}", file=sys.stderr)
    return EXIT_ERROR
