"""Cells of a notebook that are interrupted.

The kernel of a notebook sets Python's own interrupt handler anew before every cell, so ours must be
installed once a cell begins. Programs that an interrupted cell has started go on, as on JAX's other
platforms: where they do so for long, the next cell tells why it waits.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from neuronjax.pjrt.interrupt import Interrupts

PATIENCE_SECONDS = 2.0
_POLL_SECONDS = 0.02

STILL_RUNNING = (
    "neuronjax: {runs} of an interrupted cell still {verb}; programs of this cell wait for the "
    "same cores. Restart the kernel to end {pronoun} now."
)


def watch_cells(interrupts: Interrupts, num_pending: Callable[[], int]) -> None:
    """Has ``interrupts`` installed before every cell, if this process runs a notebook.

    ``num_pending`` counts the results and copies that somebody waits for in the background.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    if not shell:
        return

    def begin_cell(_: object) -> None:
        interrupts.install()
        if interrupts.raised:
            interrupts.raised = False
            _tell_what_runs(num_pending)

    shell.events.register("pre_run_cell", begin_cell)


def _tell_what_runs(num_pending: Callable[[], int]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while num_pending():
        if time.monotonic() > end:
            several = num_pending() > 1
            runs, verb, pronoun = (
                ("runs", "go on", "them") if several else ("a run", "goes on", "it")
            )
            print(STILL_RUNNING.format(runs=runs, verb=verb, pronoun=pronoun), file=sys.stderr)
            return
        time.sleep(_POLL_SECONDS)
