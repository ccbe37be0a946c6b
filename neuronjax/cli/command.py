"""The record that describes a command of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A command of ``neuronjax``; the command's module has one of these, called ``COMMAND``."""

    help: str
    """One line for the list of commands."""
    description: str
    """The text of ``--help``."""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    """Returns the exit code; may raise ``NeuronError``."""
    runs_programs: bool = False
    """Whether it runs the user's programs, whose objects Python finalises when the process ends."""
