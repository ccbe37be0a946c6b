"""Operations of CHLO that engines do at once, or as part of an activation, put together again, and
others expanded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from neuronjax.hlo.expansions import DIRECTION, Made, Reader, expansion
from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.operations import is_splat
from neuronjax.lower.rewriter import Rewrite, Writer

_VIEWS = frozenset({"broadcast_in_dim", "reshape"})


def _number(value: Value) -> np.generic | None:
    """The one number of a constant, also of one that was broadcast."""
    while value.producer is not None and value.producer.name in _VIEWS:
        (value,) = value.producer.operands
    return value.producer.attributes["value"].flat[0] if is_splat(value) else None  # type: ignore[union-attr]


def _itself(value: Value) -> Value:
    """The value behind reshapes that change no shape, which rewriting leaves."""
    while value.producer is not None and value.producer.name == "reshape":
        (source,) = value.producer.operands
        if source.shape != value.shape:
            break
        value = source
    return value


def _made(value: Value) -> Made[Value] | None:
    op = value.producer
    if op is None:
        return None
    return Made(op.name, op.attributes.get(DIRECTION), [*map(_itself, op.operands)])


_READER: Reader[Value] = Reader(_made, _number)


def expanded(writer: Writer, name: str, x: Value) -> Value:
    """An operation of CHLO on FP32 numbers, in terms of StableHLO."""
    graph = expansion(name)
    known = {graph.parameters[0]: x}
    for op in graph.operations:
        if op.name == "constant":
            made = writer.constant(op.attributes["value"].flat[0], x)
        else:
            operands = [known[operand] for operand in op.operands]
            dtype = op.result.dtype
            made = writer.add(op.name, *operands, shape=x.shape, dtype=dtype, **op.attributes)
        known[op.result] = made
    (result,) = graph.results
    return known[result]


def erfc(writer: Writer, op: Op) -> Sequence[Value] | None:
    """The complementary error function."""
    if op.result.dtype != np.float32:
        return None
    argument = _READER.argument("chlo.erfc", _itself(op.result))
    return None if argument is None else [writer.add("chlo.erfc", argument)]


COMPOSED: Mapping[str, Rewrite] = {"select": erfc}
"""The last operation of an expansion -> what puts it together."""
