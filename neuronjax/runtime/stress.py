"""Seeded disturbances for tests of lifetimes.

Under stress (``NEURONJAX_STRESS``) events are delayed, finished work sometimes looks unfinished,
and memory that has been returned to the table of handles is filled with a pattern, so that writes
to it are detected.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

POISON = 0x5A
"""The value of every byte of memory that its owner has returned."""

_DELAYED, _LONGEST_SECONDS = 0.5, 0.003
_PRETENDED = 0.5
"""Fractions of events that are delayed, and of finished work that looks unfinished."""


class Stress:
    """The source of disturbances of one process."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def delayed(self, job: Callable[[], None]) -> Callable[[], None]:
        """``job``, preceded by a pause."""
        pause = max(0.0, self._random.random() - _DELAYED) / (1 - _DELAYED) * _LONGEST_SECONDS

        def late() -> None:
            time.sleep(pause)
            job()

        return late

    def pretends_pending(self) -> bool:
        """Whether finished work should look unfinished."""
        return self._random.random() < _PRETENDED
