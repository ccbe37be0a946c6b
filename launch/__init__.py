"""Programs for training and inference: `python -m launch.train --help`, and so on.

Importing their dependencies takes seconds; an interrupt during that time ends them as one in
`program.run` does, with one line and exit code 130. So does a dependency that is not installed.
"""

import os
import sys
from types import TracebackType
from typing import NoReturn

INTERRUPTED = 130  # 128 + SIGINT, the shell's convention
NOT_INSTALLED = 2


def _report(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if isinstance(error, KeyboardInterrupt):
        _end("interrupted", INTERRUPTED)
    if isinstance(error, ModuleNotFoundError):
        _end(
            f"{error.name} is not installed; in the checkout: pip install -e . --group jobs",
            NOT_INSTALLED,
        )
    sys.__excepthook__(kind, error, traceback)


def _end(message: str, code: int) -> NoReturn:
    print(message, file=sys.stderr, flush=True)
    os._exit(code)


if sys.argv[:1] == ["-m"]:  # what Python has there while it looks for the module to run
    sys.excepthook = _report
