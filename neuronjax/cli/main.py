"""``neuronjax COMMAND …``: parses the command line and runs the command."""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import sys
from collections.abc import Iterable, Sequence

from neuronjax import __version__
from neuronjax.cli.command import Command
from neuronjax.cli.parser import EXIT_ERROR, Parser
from neuronjax.errors import NeuronError
from neuronjax.process_settings import seldom_collected

COMMANDS = (
    "calibrate",
    "completion",
    "cost",
    "doctor",
    "estimate",
    "fit",
    "launch",
    "lint",
    "lower",
    "ls",
    "maxtext",
    "monitor",
    "nccom",
    "nki",
    "plan",
    "profile",
    "replay",
    "run",
    "sweep",
    "top",
    "validate",
)
"""Each is the `COMMAND` of the module of its name in this package, loaded when it is asked for."""

_ABOUT_ALL = ("completion",)
"""Commands that need the arguments of all others."""


def parser(names: Iterable[str] = COMMANDS) -> Parser:
    """The parser of the command line, as far as it is about some commands."""
    whole = Parser(
        prog="neuronjax",
        description="Tools for JAX programs that are meant for AWS Trainium and Inferentia.",
    )
    whole.add_argument("--version", action="version", version=f"neuronjax {__version__}")
    words = whole.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name in names:
        command: Command = importlib.import_module(f"neuronjax.cli.{name}").COMMAND
        subparser = words.add_parser(
            name,
            help=command.help,
            description=command.description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(subparser)
        subparser.set_defaults(command=command, commands=words.choices, parser=subparser)
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line, by default that of the process, and returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    with seldom_collected:
        parsed, unknown = parser(_asked_for(words)).parse_known_args(words)
        if unknown:
            parsed.parser.refuse_unknown(unknown)
        if arguments is None and not parsed.command.runs_programs:
            # The process ends: looking for garbage once more takes a third of a second.
            atexit.register(gc.freeze)
        return _run(parsed)


def _run(parsed: argparse.Namespace) -> int:
    try:
        code: int = parsed.command.run(parsed)
        return code
    except NeuronError as error:
        print(f"neuronjax: {error}", file=sys.stderr)
    except OSError as error:  # a file that cannot be read or written
        print(f"neuronjax: {error.filename or 'output'}: {error.strerror}", file=sys.stderr)
    return EXIT_ERROR


def _asked_for(words: Sequence[str]) -> Sequence[str]:
    """The command that a command line is about; all, if that is not a single one."""
    first = words[:1]
    if first == ["--version"]:
        return ()
    is_one = first and first[0] in COMMANDS and first[0] not in _ABOUT_ALL
    return first if is_one else COMMANDS
