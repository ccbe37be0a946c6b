"""Whether walks go through all elements of a tensor, through each of them once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_MOST_RUNS = 1 << 20
"""Contiguous runs of elements in a tensor of which it is asked."""


class Walk(NamedTuple):
    """Elements base + Σ stride · step, each step from 0 to its size - 1."""

    base: int
    steps: tuple[tuple[int, int], ...]


def fill_once(walks: Sequence[Walk], elements: int) -> bool:
    """Whether the walks fill a tensor without gaps, and write nothing twice; False: or unknown.

    Elements are counted in runs as long as all walks go through together.
    """
    total = sum(math.prod(size for _, size in walk.steps) for walk in walks)
    if total != elements:
        return False
    runs = [_in_runs(walk) for walk in walks]
    unit = math.gcd(elements, *(number for run, walk in runs for number in _numbers(run, walk)))
    if elements // unit > _MOST_RUNS:
        return False
    hits = np.zeros(elements // unit, np.int64)
    for run, (base, steps) in runs:
        offsets = np.array([base // unit])
        for stride, size in (*steps, (unit, run // unit)):
            offsets = (offsets[:, None] + stride // unit * np.arange(size)).reshape(-1)
        if offsets.min() < 0 or offsets.max() >= hits.size:
            return False
        hits[offsets] += 1
    return bool((hits == 1).all())


def _in_runs(walk: Walk) -> tuple[int, Walk]:
    """The length of a walk's contiguous runs, and the walk from run to run."""
    run = 1
    steps = sorted((step for step in walk.steps if step[1] > 1), key=lambda step: step[0])
    while steps and steps[0][0] == run:
        run *= steps.pop(0)[1]
    return run, Walk(walk.base, tuple(steps))


def _numbers(run: int, walk: Walk) -> tuple[int, ...]:
    return (run, walk.base, *(stride for stride, _ in walk.steps))
