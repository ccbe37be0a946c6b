"""Programs for training and inference: `python -m launch.train --help`, and so on.

Importing their dependencies takes seconds; an interrupt during that time ends them as one in
`program.run` does, with one line and exit code 130.
"""

import os
import sys
from types import TracebackType

INTERRUPTED = 130  # 128 + SIGINT, the shell's convention


def _report(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    print("interrupted", file=sys.stderr, flush=True)
    os._exit(INTERRUPTED)


if sys.argv[:1] == ["-m"]:  # what Python has there while it looks for the module to run
    sys.excepthook = _report
