"""What every binary does around its one call: plain messages and exit codes."""

import sys
from collections.abc import Callable

from absl import app, logging

from launch.errors import LaunchError
from models.errors import ModelsError

INTERRUPTED = 130  # 128 + SIGINT, the shell's convention


def run(main: Callable[[], int]) -> None:
    """Parses the flags, calls `main` and exits with the code it returns.

    A LaunchError or ModelsError is printed as one message (exit code 1), an interrupt as one line
    (code 130).
    """

    def guarded(argv: list[str]) -> int:
        if len(argv) > 1:
            raise app.UsageError(f"unexpected arguments {argv[1:]}: every option is a --flag")
        logging.set_verbosity(logging.ERROR)  # libraries; this project's messages are not logs
        try:
            return main()
        except (LaunchError, ModelsError) as error:
            say(f"error: {error}")
            return 1
        except KeyboardInterrupt:
            say("interrupted")
            return INTERRUPTED

    app.run(guarded)


def say(message: str) -> None:
    """A message to the person at the terminal, apart from the program's output."""
    print(message, file=sys.stderr, flush=True)
