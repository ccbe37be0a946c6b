"""Operations of CHLO, recognised in what XLA makes of them.

JAX sends a plugin few of them as they are, and XLA's partitioner leaves none: only their expansions
arrive. Those that engines do at once, or as part of an activation, are put together again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from neuronjax.hlo import chlo
from neuronjax.hlo import graph as hlo_graph
from neuronjax.hlo import module as hlo
from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.operations import is_splat
from neuronjax.lower.rewriter import Rewrite, Writer

_VIEWS = frozenset({"broadcast_in_dim", "reshape"})


@cache
def _expansion(name: str) -> Graph:
    """What XLA makes of an operation of CHLO on one FP32 number."""
    text = (
        "func.func @main(%x: tensor<f32>) -> tensor<f32> {\n"
        f"  %y = {name} %x : tensor<f32> -> tensor<f32>\n  return %y : tensor<f32>\n}}"
    )
    with hlo.context():
        module = hlo.load(text.encode())
        chlo.expand(module, ())
        hlo_graph.prepare(module)
        return hlo_graph.read(module)


def _number(value: Value) -> np.generic | None:
    """The one number of a constant, also of one that was broadcast."""
    while value.producer is not None and value.producer.name in _VIEWS:
        (value,) = value.producer.operands
    return value.producer.attributes["value"].flat[0] if is_splat(value) else None  # type: ignore[union-attr]


def _itself(value: Value) -> Value:
    """Behind reshapes that change no shape, which rewriting leaves."""
    while value.producer is not None and value.producer.name == "reshape":
        (source,) = value.producer.operands
        if source.shape != value.shape:
            break
        value = source
    return value


def _is_same(pattern: Value, value: Value, known: dict[Value, Value]) -> bool:
    """Whether a value is computed as the pattern is; `known` gets what stands for what."""
    value = _itself(value)
    if pattern in known:
        return known[pattern] is value
    if is_splat(pattern):
        return _number(pattern) == _number(value)
    known[pattern] = value
    if pattern.producer is None:
        return True
    wanted, made = pattern.producer, value.producer
    if made is None or made.name != wanted.name or made.regions:
        return False
    direction = "comparison_direction"
    if made.attributes.get(direction) != wanted.attributes.get(direction):
        return False
    pairs = zip(_operands(wanted), _operands(made), strict=True)
    return all(_is_same(*pair, known) for pair in pairs)


def _operands(op: Op) -> Sequence[Value]:
    """The operands; those that may come in any order with constants last, as XLA puts them."""
    if op.name not in ("add", "multiply"):
        return op.operands
    return sorted(op.operands, key=lambda value: _number(value) is not None)


def expanded(writer: Writer, name: str, x: Value) -> Value:
    """An operation of CHLO on FP32 numbers, in terms of StableHLO."""
    expansion = _expansion(name)
    known = {expansion.parameters[0]: x}
    for op in expansion.operations:
        if op.name == "constant":
            made = writer.constant(_number(op.result), x)
        else:
            operands = [known[operand] for operand in op.operands]
            dtype = op.result.dtype
            made = writer.add(op.name, *operands, shape=x.shape, dtype=dtype, **op.attributes)
        known[op.result] = made
    (result,) = expansion.results
    return known[result]


def erfc(writer: Writer, op: Op) -> Sequence[Value] | None:
    """The complementary error function."""
    if op.result.dtype != np.float32:
        return None
    expansion, known = _expansion("chlo.erfc"), dict[Value, Value]()
    if not _is_same(expansion.results[0], op.result, known):
        return None
    return [writer.add("chlo.erfc", known[expansion.parameters[0]])]


COMPOSED: Mapping[str, Rewrite] = {"select": erfc}
"""The last operation of an expansion -> what puts it together."""
