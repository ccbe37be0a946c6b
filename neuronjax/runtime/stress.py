"""Trouble on purpose, by a seed: for tests of what lives how long.

Under stress (``NEURONJAX_STRESS``) events come late, finished work looks unfinished now and then,
and memory that has been given back to the table of handles is filled with a pattern and watched:
whoever writes to it is found out.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

POISON = 0x5A
"""What every byte of memory becomes when its owner has given it back."""

_DELAYED, _LONGEST_SECONDS = 0.5, 0.003
_PRETENDED = 0.5
"""Shares of events that are delayed, and of finished work that looks unfinished."""


class Stress:
    """The source of trouble of one process."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def delayed(self, job: Callable[[], None]) -> Callable[[], None]:
        """``job`` after a pause."""
        pause = max(0.0, self._random.random() - _DELAYED) / (1 - _DELAYED) * _LONGEST_SECONDS

        def late() -> None:
            time.sleep(pause)
            job()

        return late

    def pretends_pending(self) -> bool:
        """Whether work that is over should be taken for work that goes on."""
        return self._random.random() < _PRETENDED
