"""Runs a user's script inside this process, as ``python SCRIPT ARGS`` would."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import runpy
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from neuronjax import nki_imports
from neuronjax.errors import ScriptError

NO_PROGRAM = "No program was compiled for platform neuron; does the script choose another platform?"
"""Why there is nothing to say about a script."""

_REPEAT_SECONDS = 5.0
"""A script that continues after an interrupt is interrupted again after this time."""


@dataclass(frozen=True)
class Outcome:
    """How a script ended."""

    script: str
    error: str | None
    """One line on why it failed; ``None`` if it succeeded."""


@contextlib.contextmanager
def stdout_on_stderr() -> Iterator[IO[str]]:
    """Redirects all output of the process to standard error; yields a file on the real output."""
    sys.stdout.flush()
    real = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(real), "w") as out:
            yield out
    finally:
        sys.stdout.flush()
        os.dup2(real, 1)
        os.close(real)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A script and its arguments, to be added after the command's own options."""
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
    parser.add_argument("script", metavar="SCRIPT", help="the script, or a module with -m")
    parser.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="ARG",
        action=_ScriptArguments,
        help="its arguments",
    )


class _ScriptArguments(argparse.Action):
    """Keeps the script's arguments, and notes those that look like options of the command."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        own = set(re.findall(r"--\w+", parser.format_usage()))
        for value in values or ():
            if value.partition("=")[0] in own:
                print(
                    f"note: {value} stands after the script and goes to it; options of "
                    f"{parser.prog} go before the script.",
                    file=sys.stderr,
                )


def check(script: str, is_module: bool) -> None:
    """Raises ``ScriptError`` if there is no such script or module."""
    if is_module:
        sys.path.insert(0, "")
        package = script.partition(".")[0]
        if importlib.util.find_spec(package) is None:
            raise ScriptError(f"there is no module {script!r}; check which folder you are in.")
    elif not Path(script).is_file():
        raise ScriptError(
            f"there is no script {script!r}; give the path of a Python file, or a module with -m."
        )


def run(script: str, arguments: Sequence[str], is_module: bool, timeout: float) -> Outcome:
    """Runs a script, or a module by its name, as ``__main__``.

    `import nki` in it finds `neuronjax.nki` unless another package is installed.

    Prints the traceback of an exception on standard error, without the frames around the script.
    ``timeout`` is in seconds, 0 for none.
    """
    sys.argv = [script, *arguments]
    nki_imports.allow()
    sys.path[0] = "" if is_module else str(Path(script).resolve().parent)
    clock = _Clock(timeout)
    try:
        with clock:
            if is_module:
                runpy.run_module(script, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(str(Path(script).resolve()), run_name="__main__")
    except SystemExit as end:
        return Outcome(script, None if end.code in (None, 0) else f"it exited with {end.code!r}")
    except KeyboardInterrupt:
        return Outcome(script, clock.reason())
    except BaseException as error:
        _print(error)
        return Outcome(script, f"it raised {type(error).__name__}: {_first_line(error)}")
    return Outcome(script, clock.reason() if clock.expired else None)


class _Clock:
    """Interrupts the main thread when the time is up."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.expired = False

    def __enter__(self) -> _Clock:
        if self._seconds:
            signal.signal(signal.SIGALRM, self._expire)
            signal.setitimer(signal.ITIMER_REAL, self._seconds, _REPEAT_SECONDS)
        return self

    def __exit__(self, *_: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _expire(self, *_: Any) -> None:
        self.expired = True
        signal.raise_signal(signal.SIGINT)

    def reason(self) -> str:
        """Why the script was interrupted."""
        if not self.expired:
            return "it was interrupted"
        return (
            f"it did not end within {self._seconds:g} seconds; results are zeros here, so a loop "
            "that waits for a value never ends (give it a bound, or raise --timeout)"
        )


def _print(error: BaseException) -> None:
    """The traceback, beginning with the script."""
    trace: TracebackType | None = error.__traceback__
    around = (__file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in around:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]
