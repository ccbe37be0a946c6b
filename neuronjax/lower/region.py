"""The region of an operation (a reducer, a comparator) as element-wise code on tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from neuronjax.hlo.graph import Graph, Op, Value, refuse
from neuronjax.lower.chain import elementwise
from neuronjax.lower.operations import is_elementwise, is_splat
from neuronjax.lower.values.storage import storage_of
from neuronjax.lower.values.view import dense_strides
from neuronjax.lower.write.builder import KernelBuilder, tile_access
from neuronjax.program.element_types import ElementType
from neuronjax.program.operand import Access, Immediate, Scalar

SAME = frozenset({"broadcast_in_dim", "reshape", "optimization_barrier"})
"""Operations that change nothing about one element."""
_KEPT = ("comparison_direction", "compare_type")


def is_emittable(graph: Graph) -> bool:
    """Whether engines can do all operations of a region; it may capture constants only."""
    return all(
        op.name == "constant" or (op.name in SAME and _is_scalar(op)) or is_elementwise(op)
        for op in graph.operations
    ) and all(is_splat(value) for value in graph.captured())


def _is_scalar(op: Op) -> bool:
    return all(math.prod(value.shape) == 1 for value in op.operands)


def fingerprint(graph: Graph) -> tuple[Any, ...]:
    """What a region computes: equal for equal regions."""
    number: dict[Value, int] = {value: index for index, value in enumerate(graph.parameters)}
    rows: list[tuple[Any, ...]] = []

    def known(value: Value) -> Any:
        if value in number:
            return number[value]
        return repr(_constant(value)), value.dtype.name

    for op in graph.operations:
        rows.append(
            (
                op.name,
                tuple(known(value) for value in op.operands),
                tuple(op.attributes.get(name) for name in _KEPT),
                repr(_constant(op.result)) if op.name == "constant" else "",
                tuple(value.dtype.name for value in op.results),
            )
        )
        for value in op.results:
            number[value] = len(number)
    return (*rows, tuple(known(value) for value in graph.results))


def _constant(value: Value) -> Any:
    assert value.producer is not None
    return value.producer.attributes["value"].flat[0].item()


def apply(
    builder: KernelBuilder, graph: Graph, srcs: Sequence[Scalar], dsts: Sequence[Access]
) -> None:
    """dsts = what a region makes of srcs; no dst shares memory with a src.

    Raises:
      UnsupportedProgramError: no engine does one of the operations.
    """
    like = dsts[0]
    known: dict[Value, Scalar] = dict(zip(graph.parameters, srcs, strict=True))
    wanted: dict[Value, Access] = {}
    for value, dst in zip(graph.results, dsts, strict=True):
        if value not in known:
            wanted.setdefault(value, dst)
    for op in graph.operations:
        _emit(builder, op, known, wanted, like)
    for value, dst in zip(graph.results, dsts, strict=True):
        scalar = _operand(known, value)
        if scalar is not dst:
            elementwise.fill(builder, dst, scalar)


def _emit(
    builder: KernelBuilder,
    op: Op,
    known: dict[Value, Scalar],
    wanted: dict[Value, Access],
    like: Access,
) -> None:
    if op.name == "constant":
        return
    srcs = tuple(_operand(known, value) for value in op.operands)
    if op.name in SAME:
        known.update(zip(op.results, srcs, strict=True))
        return
    if not is_elementwise(op):
        raise refuse(op, "the engines have no element-wise form of it")
    dst = wanted.get(op.result) or scratch(builder, like, storage_of(op.result.dtype).dtype)
    elementwise.emit(
        elementwise.Work(
            builder=builder,
            name=op.name,
            attributes=op.attributes,
            dst=dst,
            srcs=srcs,
            operand=op.operands[1 if op.name == "select" else 0].dtype,
            result=op.result.dtype,
        )
    )
    known[op.result] = dst


def _operand(known: dict[Value, Scalar], value: Value) -> Scalar:
    return known[value] if value in known else Immediate(_constant(value))


def scratch(builder: KernelBuilder, like: Access, dtype: ElementType | None = None) -> Access:
    """A dense tile of the size of another access."""
    tile = builder.tile((like.partitions, *like.sizes), dtype or like.element_type, name="x")
    return tile_access(tile, like.sizes, dense_strides(like.sizes))
