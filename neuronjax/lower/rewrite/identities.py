"""Operations on truth values and integers that give one of their operands as it is.

Masks are made of them: `jnp.tril` chooses between all-true and all-false, and a mask is combined
with one that hides nothing. Operations on floating point are left: adding 0 changes -0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.operations import number_of
from neuronjax.lower.rewriter import Rewrite, Writer

Neutral = Callable[[np.dtype], int]
"""The number with which an operation gives its other operand, of a type."""


def _ones(dtype: np.dtype) -> int:
    """All bits are set."""
    return int(np.invert(np.zeros((), dtype)))


def _zero(dtype: np.dtype) -> int:
    return 0


def _unit(dtype: np.dtype) -> int:
    return 1


def with_neutral(neutral: Neutral, *, either: bool = True) -> Rewrite:
    """An operation of two operands, one of which may be neutral; only the second unless
    `either`."""

    def rule(writer: Writer, op: Op) -> Sequence[Value] | None:
        left, right = op.operands
        if not _is_whole(left):
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


def _is_whole(value: Value) -> bool:
    return value.dtype == np.bool_ or np.issubdtype(value.dtype, np.integer)


def _is_number(value: Value, number: int) -> bool:
    known = number_of(value)
    return known is not None and known == number


IDENTITIES: Mapping[str, Rewrite] = {
    "add": with_neutral(_zero),
    "and": with_neutral(_ones),
    "divide": with_neutral(_unit, either=False),
    "multiply": with_neutral(_unit),
    "or": with_neutral(_zero),
    "select": select,
    "shift_left": with_neutral(_zero, either=False),
    "shift_right_arithmetic": with_neutral(_zero, either=False),
    "shift_right_logical": with_neutral(_zero, either=False),
    "subtract": with_neutral(_zero, either=False),
    "xor": with_neutral(_zero),
}
"""Operation -> the operand that it gives."""
