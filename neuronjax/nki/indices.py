"""Indices and patterns that a kernel gives for parts of a tensor, as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from neuronjax.errors import UnsupportedProgramError, quoted
from neuronjax.nki.dynamic_loops import VirtualRegister
from neuronjax.nki.tracing import current
from neuronjax.nki.unknown_values import UnknownValues


def walk(pattern: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The steps and the counts of a pattern. ``UnsupportedProgramError``: it is none."""
    pattern = pattern.tolist() if isinstance(pattern, np.ndarray) else pattern
    is_walk = isinstance(pattern, list | tuple) and all(
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and all(hasattr(number, "__index__") for number in pair)
        for pair in pattern
    )
    if not pattern or not is_walk:
        raise UnsupportedProgramError(
            f"{current().line()}: {quoted(pattern)} is no pattern; pass [step, count] of every "
            "dimension, such as [[64, 128], [1, 64]]."
        )
    steps, counts = (
        [integer(number) for number in numbers] for numbers in zip(*pattern, strict=True)
    )
    return tuple(steps), tuple(counts)


def bounds(entry: object, size: int) -> tuple[int, int, int]:
    """Start, stop and step of an index into `size` elements, as Python counts them: below 0 from
    the end. Nothing is cut off."""
    if isinstance(entry, slice):
        start = _place(0 if entry.start is None else entry.start, size)
        stop = _place(size if entry.stop is None else entry.stop, size)
        return start, stop, 1 if entry.step is None else integer(entry.step)
    start = _place(entry, size)
    return start, start + 1, 1


def shown(entry: object) -> str:
    """An index as Python writes it."""
    if not isinstance(entry, slice):
        return str(entry)
    parts = [entry.start, entry.stop, *([] if entry.step is None else [entry.step])]
    return ":".join("" if part is None else str(part) for part in parts)


def _place(index: object, size: int) -> int:
    place = integer(index)
    return place + size if place < 0 else place


def integer(index: object) -> int:
    """An index that Python knows. ``UnsupportedProgramError``: it is none."""
    if type(index) is int:
        return index
    if isinstance(index, UnknownValues | VirtualRegister) or not hasattr(index, "__index__"):
        raise UnsupportedProgramError(
            f"{current().line()}: {quoted(index)} is no index of a tensor; pass integers, slices, "
            "nl.ds(start, size) with a number or a register, or tensor.ap(…)."
        )
    return index.__index__()
