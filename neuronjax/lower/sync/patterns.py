"""What an instruction touches, as linear functions of the loop variables about it, in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neuronjax.lower.sync.streams import Row, Turn
from neuronjax.program.affine import Affine
from neuronjax.program.element_types import bytes_of
from neuronjax.program.operand import Access, Buffer, Register, RegisterOffset


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """A use of a buffer or register.

    Touched are the bytes `low` to `high` about `start` plus Σ stride · step for the `strides`, of
    `lanes` partitions from `partition`, in slot `slot` modulo the buffer's. `start` is None where
    all of the buffer may be touched: only a register knows, or it is a register.
    """

    buffer: Buffer | Register
    is_write: bool
    start: Row | None
    strides: tuple[tuple[int, int], ...]
    low: int
    high: int
    partition: Row
    lanes: int
    slot: Row


def pattern(operand: Access | Register, is_write: bool, loops: Sequence[Turn]) -> Pattern:
    """The pattern of an operand of an instruction within `loops`."""
    zero = (0,) * (len(loops) + 1)
    if isinstance(operand, Register):
        return Pattern(operand, is_write, None, (), 0, 0, zero, 1, zero)
    partition = _row(operand.partition, loops)
    slot = _row(operand.slot, loops)
    lanes = operand.partitions
    if isinstance(operand.offset, RegisterOffset):
        return Pattern(operand.buffer, is_write, None, (), 0, 0, partition, lanes, slot)
    width = bytes_of(operand.buffer.dtype)
    low, high, strides = _run(operand, width)
    start = _row(operand.offset * width, loops)
    return Pattern(operand.buffer, is_write, start, strides, low, high, partition, lanes, slot)


def _run(access: Access, width: int) -> tuple[int, int, tuple[tuple[int, int], ...]]:
    """The innermost contiguous bytes, and the strides and sizes of what is about them."""
    low, high = 0, width - 1
    strides: list[tuple[int, int]] = []
    for dim in sorted(access.dims, key=lambda dim: abs(dim.stride)):
        step = dim.stride * width
        if dim.size == 1 or not step:
            continue
        if not strides and abs(step) <= high - low + 1:
            end = step * (dim.size - 1)
            low, high = low + min(0, end), high + max(0, end)
        else:
            strides.append((step, dim.size))
    return low, high, tuple(reversed(strides))


def _row(value: Affine, loops: Sequence[Turn]) -> Row:
    if not value.terms:
        return (value.base,) + (0,) * len(loops)
    factors = dict(value.terms)
    return (value.base, *(factors.get(turn.variable, 0) for turn in loops))
