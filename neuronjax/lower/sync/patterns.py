"""What an instruction touches, as linear functions of the loop variables about it, in bytes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from neuronjax.lower.sync.streams import Row, Turn
from neuronjax.program.affine import Affine
from neuronjax.program.element_types import bytes_of
from neuronjax.program.operand import Access, Buffer, Register, RegisterOffset
from neuronjax.program.strided import strided

Strides = tuple[tuple[int, int], ...]
"""Strides and sizes."""


@dataclass(slots=True, eq=False)
class Pattern:
    """A use of a buffer or register.

    Touched are `length` bytes from `start` plus Σ stride · step on, for the `strides`, of `lanes`
    partitions from `partition`, in slot `slot` modulo the buffer's. `start` is None where all of
    the buffer may be touched: only a register knows, or it is a register.
    """

    buffer: Buffer | Register
    is_write: bool
    start: Row | None
    strides: Strides
    length: int
    partition: Row
    lanes: int
    slot: Row


def pattern(operand: Access | Register, is_write: bool, loops: Sequence[Turn]) -> Pattern:
    """The pattern of an operand of an instruction within `loops`."""
    zero = (0,) * (len(loops) + 1)
    if isinstance(operand, Register):
        return Pattern(operand, is_write, None, (), 1, zero, 1, zero)
    partition = _row(operand.partition, loops)
    slot = _row(operand.slot, loops)
    lanes = operand.partitions
    if isinstance(operand.offset, RegisterOffset):
        return Pattern(operand.buffer, is_write, None, (), 1, partition, lanes, slot)
    width = bytes_of(operand.buffer.dtype)
    steps = tuple([(dim.stride, dim.size) for dim in operand.dims])
    first, length, strides = _walk(steps, width)
    base, *factors = _row(operand.offset, loops)
    start = ((base + first) * width, *[factor * width for factor in factors])
    return Pattern(operand.buffer, is_write, start, strides, length, partition, lanes, slot)


@functools.lru_cache(maxsize=1 << 12)
def _walk(steps: Strides, width: int) -> tuple[int, int, Strides]:
    """The first element of a walk, and its runs in bytes: their length, and the strides between
    them, the coarsest first."""
    elements = strided(0, steps)
    length, terms = elements.run(width)
    strides = tuple((stride * width, size) for stride, size in reversed(terms))
    return elements.first, length, strides


def _row(value: Affine, loops: Sequence[Turn]) -> Row:
    if not value.terms:
        return (value.base,) + (0,) * len(loops)
    factors = dict(value.terms)
    return (value.base, *[factors.get(turn.variable, 0) for turn in loops])
