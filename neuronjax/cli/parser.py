"""The parser of the command line: a wrong value is one line, the last, with what is close to it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from neuronjax.errors import did_you_mean, quoted

EXIT_ERROR = 2
"""The exit code of errors, which is argparse's for invalid arguments."""


class Parser(argparse.ArgumentParser):
    """A parser that refuses an argument in one line, without the page of usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_ERROR, f"{self.prog}: {message}\n")

    def refuse_unknown(self, words: Sequence[str]) -> NoReturn:
        """Ends the process because of words that no argument takes."""
        flags = [flag for action in self._actions for flag in action.option_strings]
        word = words[0].partition("=")[0]
        hint = did_you_mean(word, flags) if word.startswith("-") else ""
        self.error(f"unknown argument {quoted(' '.join(words))}.{hint} See {self.prog} --help.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """argparse's own check, whose message names all choices and no close one."""
        choices = action.choices
        if choices is not None and value not in choices:
            known = [str(choice) for choice in choices]
            raise argparse.ArgumentError(
                action,
                f"{quoted(value)} is not one of {', '.join(known)}."
                f"{did_you_mean(str(value), known)}",
            )
