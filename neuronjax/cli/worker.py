"""A process of ``neuronjax launch``: runs a script as part of the launcher's job.

``python -m neuronjax.cli.worker LIFELINE REPORTS ADDRESS INDEX COUNT [-m] SCRIPT [ARG ...]``
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from neuronjax.errors import ENDS_JOB, describe
from neuronjax.jaxlib_api import clusters


def main(arguments: Sequence[str]) -> None:
    """Runs the script as ``python SCRIPT ARG ...`` would; reports the exception that ends it."""
    lifeline, reports, address, index, count, *script = arguments
    threading.Thread(target=_end_with_launcher, args=(int(lifeline),), daemon=True).start()
    clusters.announce(address, int(index), int(count))
    try:
        _run(script)
    except Exception as error:
        if ENDS_JOB in str(error):
            raise
        os.write(int(reports), json.dumps([int(index), describe(error)]).encode() + b"\n")
        raise


def _run(script: Sequence[str]) -> None:
    if script[0] == "-m":
        sys.argv = [*script[1:]]
        sys.path.insert(0, "")
        runpy.run_module(script[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [*script]
        sys.path.insert(0, str(Path(script[0]).resolve().parent))
        runpy.run_path(script[0], run_name="__main__")


def _end_with_launcher(lifeline: int) -> None:
    """Ends this process when the pipe closes, as it does when the launcher ends in any way."""
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1:])
