"""Operations of CHLO in terms of StableHLO: what XLA makes of one, and recognising it there.

JAX sends a plugin few of them as they are, and XLA's partitioner leaves none: only their expansions
arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from neuronjax.hlo import chlo
from neuronjax.hlo import graph as hlo_graph
from neuronjax.hlo import module as hlo
from neuronjax.hlo.graph import Graph

Value = TypeVar("Value", bound=Hashable)
_ANY_ORDER = frozenset({"add", "multiply"})
DIRECTION = "comparison_direction"


@cache
def expansion(name: str) -> Graph:
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


class Made(NamedTuple, Generic[Value]):
    """How a value is made: the operation without prefix, its direction if it compares, operands."""

    name: str
    direction: str | None
    operands: Sequence[Value]


@dataclass(frozen=True)
class Reader(Generic[Value]):
    """How values of some kind are read."""

    made: Callable[[Value], Made[Value] | None]
    number: Callable[[Value], float | np.generic | None]
    """The number that fills a value, also one that was broadcast."""

    def argument(self, name: str, value: Value) -> Value | None:
        """The x of which a value is the expansion of the operation `name` of CHLO, in FP32."""
        nodes = _nodes(name)
        known: dict[int, set[Value]] = {}
        if not self._is(nodes, len(nodes) - 1, value, known):
            return None
        return next(iter(known[0]))

    def _is(
        self, nodes: Sequence[_Node], at: int, value: Value, known: dict[int, set[Value]]
    ) -> bool:
        """Whether a value is computed as a node is; `known` gets what stands for which node."""
        node = nodes[at]
        if node.number is not None:
            return self.number(value) == node.number
        seen = known.setdefault(at, set())
        if value in seen:
            return True
        if node.made is None:
            seen.add(value)
            return len(seen) == 1
        made = self.made(value)
        if made is None or made[:2] != node.made[:2]:
            return False
        operands = list(made.operands)
        if made.name in _ANY_ORDER:  # XLA puts constants last
            operands.sort(key=lambda operand: self.number(operand) is not None)
        if not all(
            self._is(nodes, wanted, operand, known)
            for wanted, operand in zip(node.made.operands, operands, strict=True)
        ):
            return False
        seen.add(value)
        return True


class _Node(NamedTuple):
    """A value of an expansion: made of others, by their numbers, or a number; node 0 is x."""

    made: Made[int] | None = None
    number: float | None = None


@cache
def _nodes(name: str) -> tuple[_Node, ...]:
    """The values of an expansion, the result last."""
    graph = expansion(name)
    numbers = {graph.parameters[0]: 0}
    nodes = [_Node()]
    for op in graph.operations:
        if op.name == "constant":
            node = _Node(number=float(op.attributes["value"].flat[0]))
        else:
            operands = [numbers[operand] for operand in op.operands]
            if op.name in _ANY_ORDER:
                operands.sort(key=lambda operand: nodes[operand].number is not None)
            node = _Node(Made(op.name, op.attributes.get(DIRECTION), operands))
        numbers[op.result] = len(nodes)
        nodes.append(node)
    (result,) = graph.results
    return tuple(nodes[: 1 + numbers[result]])
