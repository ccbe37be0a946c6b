"""Operations on values without elements: there is nothing to read, and what they give is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.rewrite import Rewrite, Writer


def _of_nothing(rule: Rewrite) -> Rewrite:
    """The rule, for operations that have an operand without elements and a result with some."""

    def checked(writer: Writer, op: Op) -> Sequence[Value] | None:
        is_any = any(value.is_empty for value in op.operands)
        if not is_any or all(value.is_empty for value in op.results):
            return None
        return rule(writer, op)

    return checked


def zeros(writer: Writer, op: Op) -> Sequence[Value]:
    """Sums of nothing."""
    return [writer.constant(0, op.result)]


def updated(writer: Writer, op: Op) -> Sequence[Value]:
    """What is updated, as it is."""
    return op.operands[: len(op.results)]


def initial(writer: Writer, op: Op) -> Sequence[Value]:
    """The initial values of reductions, the last operands."""
    firsts = op.operands[-len(op.results) :]
    pairs = zip(op.results, firsts, strict=True)
    return [writer.broadcast(first, result.shape, ()) for result, first in pairs]


EMPTY: Mapping[str, Rewrite] = {
    "convolution": _of_nothing(zeros),
    "dot_general": _of_nothing(zeros),
    "dynamic_update_slice": _of_nothing(updated),
    "pad": _of_nothing(initial),
    "reduce": _of_nothing(initial),
    "reduce_window": _of_nothing(initial),
    "scatter": _of_nothing(updated),
    "select_and_scatter": _of_nothing(initial),
}
"""Operation -> what it gives of nothing."""
