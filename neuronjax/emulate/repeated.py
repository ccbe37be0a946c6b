"""Repeated runs of one program, whose emulations are kept for the runs that follow."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from neuronjax.emulate.core import Arguments, Emulation, Results

KEPT_BYTES = 1 << 28
"""Emulated memory per rank that is kept between runs of a program."""
TURNS_BYTES = 1 << 20
"""Runs with less memory may take turns: operations on small arrays are over before another thread
has the interpreter, and handing it over for each of them takes longer than the operations."""


@dataclass
class Repeated:
    """Runs of one program, also from several threads at once.

    `make` makes an emulation of it for arguments and a seed of stochastic rounding. As that takes
    longer than many a run, they are kept for later runs, as many as were busy at a time, unless
    they are large; one whose run has failed is not. Programs that call the host must not take
    turns, as the host may wait for what another thread runs.
    """

    make: Callable[[Sequence[Arguments], int], Emulation]
    takes_turns: bool = False
    _ready: list[Emulation] = field(default_factory=list)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, arguments: Sequence[Arguments], rounding_seed: int = 0) -> list[Results]:
        """The results of every rank. Raises as `Emulation` and `Emulation.run`."""
        try:
            emulation = self._ready.pop()
            is_new = False
        except IndexError:
            emulation = self.make(arguments, rounding_seed)
            is_new = True
        takes_turns = self.takes_turns and emulation.bytes_per_rank < TURNS_BYTES
        with self._turn if takes_turns else contextlib.nullcontext():
            if not is_new:
                emulation.reload(arguments, rounding_seed)
            emulation.run()
            results = emulation.results()
        if (len(self._ready) + 1) * emulation.bytes_per_rank <= KEPT_BYTES:
            self._ready.append(emulation)
        return results
