"""Meetings of the ranks of a program at a call that one computation answers for all."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neuronjax.errors import ExecutionError

PATIENCE_SECONDS = 600.0
"""How long a rank waits for the others."""

Arrays = Sequence[np.ndarray]


@dataclass
class _Meeting:
    """A run of the call."""

    arrays: dict[int, Arrays] = field(default_factory=dict)
    results: Sequence[Any] = ()
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)


class Meetings:
    """The runs of one call. Each rank makes the call as often as the others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._visits: Counter[int] = Counter()
        self._meetings: dict[int, _Meeting] = {}

    def attend(
        self,
        name: str,
        rank: int,
        ranks: int,
        arrays: Arrays,
        compute: Callable[[Sequence[Arrays]], Sequence[Any]],
    ) -> Any:
        """What `compute` returns for a rank, given the arrays of all; the last to come runs it.

        ExecutionError: a rank did not come; the others may call again. Errors of `compute` are
        raised in every rank.
        """
        with self._lock:
            visit = self._visits[rank]
            self._visits[rank] += 1
            meeting = self._meetings.setdefault(visit, _Meeting())
            meeting.arrays[rank] = arrays
            is_last = len(meeting.arrays) == ranks
            if is_last:
                del self._meetings[visit]
        if is_last:
            try:
                meeting.results = compute([meeting.arrays[other] for other in range(ranks)])
            except BaseException as error:
                meeting.error = error
            meeting.done.set()
        elif not meeting.done.wait(PATIENCE_SECONDS):
            missing = sorted(set(range(ranks)) - meeting.arrays.keys())
            self._start_over()
            raise ExecutionError(
                f"{name}: ranks {', '.join(map(str, missing))} did not reach the kernel within "
                f"{PATIENCE_SECONDS:.0f} s, and the others wait for them to exchange data."
            )
        if meeting.error is not None:
            raise meeting.error
        return meeting.results[rank]

    def _start_over(self) -> None:
        with self._lock:
            self._visits.clear()
            self._meetings.clear()
