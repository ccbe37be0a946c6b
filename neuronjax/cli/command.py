"""What a command of the command line is."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """One word after ``neuronjax``; its module has one of these, called ``COMMAND``."""

    help: str
    """One line for the list of commands."""
    description: str
    """What ``--help`` says."""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    """Returns the exit code; may raise ``NeuronError``."""
