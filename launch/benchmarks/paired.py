"""Paired timing: two things are measured in turn, so that both see the same load of the machine."""

from __future__ import annotations

import gc
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Thunk = Callable[[], Any]

HOW: dict[str, Callable[[float, float], float]] = {
    "ratio": operator.truediv,
    "difference": operator.sub,
}
"""How a pair of times becomes one number."""


@dataclass(frozen=True)
class Measurement:
    """One measured number with its spread.

    Attributes:
      value: the median over repetitions, in the unit of the row.
      low, high: first and third quartile.
      details: further numbers worth keeping, such as the two medians in seconds.
    """

    value: float
    low: float
    high: float
    details: dict[str, float]


def time_pairs(
    subject: Thunk,
    baseline: Thunk,
    repetitions: int,
    warmup: int,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[float], list[float]]:
    """Seconds of each call of `subject` and of `baseline`, paired by position.

    Within a pair the order alternates, so that neither profits from always coming second.
    `warmup` calls of each are made first and not timed.
    """
    thunks = (subject, baseline)
    for _ in range(warmup):
        for thunk in thunks:
            thunk()
    gc.collect()
    seconds: tuple[list[float], list[float]] = ([], [])
    for repetition in range(repetitions):
        for which in (0, 1) if repetition % 2 == 0 else (1, 0):
            started = clock()
            thunks[which]()
            seconds[which].append(clock() - started)
    return seconds


def compare(subject: Sequence[float], baseline: Sequence[float], how: str) -> Measurement:
    """Median and quartiles of the pairwise `how`, a key of HOW, of two lists of seconds."""
    pairs = zip(subject, baseline, strict=True)
    numbers = [HOW[how](ours, theirs) for ours, theirs in pairs]
    details = {
        "subject_seconds": float(np.median(subject)),
        "baseline_seconds": float(np.median(baseline)),
    }
    return summary(numbers, details)


def summary(numbers: Sequence[float], details: dict[str, float] | None = None) -> Measurement:
    """Median and quartiles of repeated measurements of one number."""
    low, middle, high = np.percentile(numbers, (25, 50, 75))
    return Measurement(float(middle), float(low), float(high), details or {})
