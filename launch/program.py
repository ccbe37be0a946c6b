"""What every program does around its `main`: plain messages and exit codes."""

import os
import sys
from collections.abc import Callable

from absl import app, logging

from launch import INTERRUPTED
from launch.errors import LaunchError
from models.errors import ModelsError

FAILED = 1
_FROM_JAX = ("Unable to initialize backend", "RESOURCE_EXHAUSTED")
"""Texts in JAX's errors about a platform that cannot start, and about memory that ran out."""


def run(main: Callable[[], int]) -> None:
    """Parses the flags, calls `main` and exits with the code it returns.

    A LaunchError, a ModelsError, and JAX's errors about its platform and memory are handled by
    `guarded`.
    """

    def parsed(argv: list[str]) -> int:
        if len(argv) > 1:
            given = " ".join(argv[1:])
            say(f"error: unexpected arguments {given}: options are given as --flags; see --help.")
            return FAILED
        # What libraries log they raise as well; this project's messages are not logs.
        logging.set_verbosity(logging.FATAL)
        sys.unraisablehook = _report
        code = guarded(main)
        if code == FAILED:
            _end_quietly()
        return code

    try:
        app.run(parsed)
    except BrokenPipeError:  # who reads what is printed wants no more, as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)


def guarded(main: Callable[[], int]) -> int:
    """The exit code of `main`. Errors that the user can act on are printed as one message (exit
    code 1), an interrupt as one line (code 130)."""
    try:
        return main()
    except (LaunchError, ModelsError) as error:
        say(f"error: {error}")
        return FAILED
    except RuntimeError as error:
        if not any(text in str(error) for text in _FROM_JAX):
            raise
        say(f"error: {error}")
        return FAILED
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED


def is_text(argument: str | None) -> bool:
    """Whether an argument is text: Python hands on bytes that are not UTF-8 as lone surrogates."""
    return argument is None or not any("\ud800" <= letter <= "\udfff" for letter in argument)


def _end_quietly() -> None:
    """Drops what is said after the message: writes that orbax gave up are thrown away while the
    interpreter ends, in the middle of their work, and each would print a traceback about that."""
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stderr__.fileno() if sys.__stderr__ else 2)


def _report(unraisable: "sys.UnraisableHookArgs") -> None:
    """Reports an error that nobody can catch as Python does, unless it is a late answer of
    tensorstore: when a write has failed, the event loop that waits for the others has ended."""
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


def say(message: str) -> None:
    """Prints a message to the terminal, separate from the program's output."""
    print(message, file=sys.stderr, flush=True)
