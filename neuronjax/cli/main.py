"""``neuronjax COMMAND …``: parses the command line and runs the command."""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import sys
from collections.abc import Iterable, Sequence

from neuronjax import __version__
from neuronjax.cli.parser import EXIT_ERROR, Parser
from neuronjax.errors import NeuronError
from neuronjax.process_settings import seldom_collected

COMMANDS = {
    "calibrate": "fit the timing model to your own measurements",
    "completion": "print a script that makes a shell complete commands and options",
    "cost": "what a training run or a million tokens costs on each machine",
    "doctor": "check the installation: versions, plugins, variables, a small program",
    "estimate": "time, memory and price of a step on a machine, without running it",
    "fit": "whether a model fits on machines, what limits it there, and what it would cost",
    "launch": "run a script in several processes, one for each host",
    "lint": "report what the Neuron compiler would refuse in a script's programs",
    "lower": "print a script's programs after partitioning, legalization or lowering",
    "ls": "the machine's chips, cores, memory and links, as neuron-ls prints them",
    "maxtext": "run MaxText's trainer on the emulated machine, or estimate its step ahead of time",
    "monitor": "counters of a running process as JSON lines",
    "nccom": "time of collectives on a machine, as nccom-test prints it",
    "nki": "check, run, time, profile, compare or print kernels written in NKI",
    "plan": "the best way to divide a training run over machines",
    "profile": "run a script and report where its time on the device goes; compare two reports",
    "replay": "run a recorded program again, to any instruction, and print its buffers",
    "run": "run a script on the emulated machine, with the kernels in it",
    "sweep": "estimates over targets, meshes, batches and dtypes; which are worth it",
    "top": "cores, memory and programs of a running process",
    "validate": "compare the timing model with public measurements",
}
"""Command -> what the list of commands says of it. The module of its name in this package has a
`DESCRIPTION`, adds its arguments to a parser (`add_arguments`), and returns the exit code (`run`,
which may raise NeuronError). It is loaded when it is asked for."""

_RUN_PROGRAMS = frozenset({"lint", "maxtext", "nki", "profile", "run"})
"""Commands that run the user's programs, whose objects Python finalises when the process ends."""

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
        command = importlib.import_module(f"neuronjax.cli.{name}")
        subparser = words.add_parser(
            name,
            help=COMMANDS[name],
            description=command.DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(subparser)
        subparser.set_defaults(
            run=command.run, command=name, commands=words.choices, parser=subparser
        )
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line, by default that of the process, and returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    with seldom_collected:
        parsed, unknown = parser(_asked_for(words)).parse_known_args(words)
        if unknown:
            parsed.parser.refuse_unknown(unknown)
        if arguments is None and parsed.command not in _RUN_PROGRAMS:
            # The process ends: looking for garbage once more takes a third of a second.
            atexit.register(gc.freeze)
        return _run(parsed)


def _run(parsed: argparse.Namespace) -> int:
    try:
        code: int = parsed.run(parsed)
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
    return first if is_one else tuple(COMMANDS)
