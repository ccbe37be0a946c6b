"""Operations on truth values and integers that give one of their operands as it is, or a constant.

Masks are made of them: `jnp.tril` chooses between all-true and all-false, and a mask is combined
with one that hides nothing. Of operations on floating point, those with 1 give their operand;
adding 0 would change -0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.operations import is_constant, number_of, root_of
from neuronjax.lower.rewriter import Rewrite, Writer

Neutral = Callable[[np.dtype], int]
"""The number with which an operation gives its other operand, of a type."""


def _ones(dtype: np.dtype) -> int:
    """The integer of a type with all bits set."""
    return int(np.invert(np.zeros((), dtype)))


def _zero(dtype: np.dtype) -> int:
    return 0


def _unit(dtype: np.dtype) -> int:
    return 1


def with_neutral(neutral: Neutral, *, either: bool = True, floats: bool = False) -> Rewrite:
    """An operation of two operands, one of which may be neutral; only the second unless
    `either`. Those on floating point have a neutral number, too, if `floats`."""

    def rule(writer: Writer, op: Op) -> Sequence[Value] | None:
        left, right = op.operands
        if not floats and not _is_whole(left):
            return None
        if _is_number(right, neutral(left.dtype)):
            return [left]
        return [right] if either and _is_number(left, neutral(left.dtype)) else None

    return rule


def select(writer: Writer, op: Op) -> Sequence[Value] | None:
    """The predicate itself if it chooses between true and false, or what a constant chooses."""
    predicate, on_true, on_false = op.operands
    chosen = number_of(predicate)
    if chosen is not None:
        return [on_true if chosen else on_false]
    if on_true.dtype != np.bool_ or predicate.shape != op.result.shape:
        return None
    if _is_number(on_true, True) and _is_number(on_false, False):
        return [predicate]
    return None


def convert(writer: Writer, op: Op) -> Sequence[Value] | None:
    """An integer that was made wider before, as numbers of 64 bits are about each of their
    operations in 32, or a constant one."""
    (wide,) = op.operands
    made, narrow = wide.producer, op.result.dtype
    if not all(np.issubdtype(dtype, np.integer) for dtype in (wide.dtype, narrow)):
        return None
    known = number_of(wide)
    if known is not None and np.issubdtype(np.asarray(known).dtype, np.integer):
        return [writer.constant(np.asarray(known).astype(wide.dtype), op.result)]
    if made is None or made.name != "convert" or narrow.itemsize >= wide.dtype.itemsize:
        return None
    (source,) = made.operands
    return [source] if source.dtype == narrow else None


def convert_before_broadcast(writer: Writer, op: Op) -> Sequence[Value] | None:
    """What is broadcast, in the other type.

    A group that multiplies a tensor by a vector would else begin with the vector's conversion.
    Those of arguments and constants join their readers.
    """
    made = op.operands[0].producer
    if made is None or made.name != "broadcast_in_dim":
        return None
    root = root_of(made.operands[0])
    if root.producer is None or is_constant(root):
        return None
    small = writer.convert(made.operands[0], op.result.dtype)
    places = made.attributes["broadcast_dimensions"]
    return [writer.broadcast(small, op.result.shape, places)]


def with_bits_left(writer: Writer, op: Op) -> Sequence[Value] | None:
    """A shift by 0, or one that leaves no bits."""
    value, distance = op.operands
    number = number_of(distance)
    if number is not None and number >= 8 * value.dtype.itemsize:
        return [writer.constant(0, value)]
    return _SHIFTED_BY_ZERO(writer, op)


_SHIFTED_BY_ZERO = with_neutral(_zero, either=False)


def _is_whole(value: Value) -> bool:
    return value.dtype == np.bool_ or np.issubdtype(value.dtype, np.integer)


def _is_number(value: Value, number: int) -> bool:
    known = number_of(value)
    return known is not None and known == number


IDENTITIES: Mapping[str, Rewrite] = {
    "add": with_neutral(_zero),
    "and": with_neutral(_ones),
    "convert": convert,
    "divide": with_neutral(_unit, either=False, floats=True),
    "multiply": with_neutral(_unit, floats=True),
    "or": with_neutral(_zero),
    "select": select,
    "shift_left": with_bits_left,
    "shift_right_arithmetic": _SHIFTED_BY_ZERO,
    "shift_right_logical": with_bits_left,
    "subtract": with_neutral(_zero, either=False),
    "xor": with_neutral(_zero),
}
"""Operation -> the operand that it gives."""

BROADCAST_LATE: Mapping[str, Rewrite] = {"convert": convert_before_broadcast}
