"""Products read the windows that indices choose where they lie: experts, adapters, a layer's part.

A gather or dynamic slice whose result only products read is part of these: the windows are not
copied, which would write them to HBM and read them again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.index.addresses import is_worth_registers
from neuronjax.lower.operations import VIEWS, Map, Users, peel, users_of
from neuronjax.lower.product.matmul import multiplied
from neuronjax.lower.tuning import Tuning
from neuronjax.lower.values.storage import is_native
from neuronjax.machine.specs import CoreSpec, TensorEngineSpec


@dataclass(frozen=True)
class _Reader:
    """A product, which of its operands is a value behind views, and how it sees that value."""

    product: Op
    side: int
    relation: Map


def with_chosen_products(graph: Graph, core: CoreSpec, tuning: Tuning) -> None:
    """Makes `chosen_product` of products that alone read the windows of a gather or slice.

    In place; gathers and slices that nothing reads any more stay.
    """
    users = users_of(graph)
    for op in graph.operations:
        vectors = _VECTORS[op.name](op) if op.name in _VECTORS else None
        if vectors is None or not _is_great(op, vectors, tuning):
            continue
        readers = _readers(op.result, users, vectors, core.tensor)
        for reader in readers or ():
            _choose(reader, op)


def _of_gather(op: Op) -> frozenset[int] | None:
    """Dimensions of a gather's result that count index vectors; None: its windows do not lie in
    runs, or share a dimension with the indices."""
    numbers, sizes = op.attributes["dimension_numbers"], op.attributes["slice_sizes"]
    if numbers["operand_batching_dims"] or not is_native(op.operands[1].dtype):
        return None
    if not _lies_in_runs(op.operands[0], sizes):
        return None
    offsets = numbers["offset_dims"]
    return frozenset(dim for dim in range(len(op.result.shape)) if dim not in offsets)


def _of_slice(op: Op) -> frozenset[int] | None:
    """No dimension of a slice's result counts anything."""
    indices = op.operands[1:]
    is_plain = all(is_native(index.dtype) for index in indices)
    return frozenset() if is_plain and _lies_in_runs(op.operands[0], op.result.shape) else None


_VECTORS = {"gather": _of_gather, "dynamic_slice": _of_slice}
"""Operation -> the dimensions of its result that count windows."""


def _lies_in_runs(source: Value, sizes: Sequence[int]) -> bool:
    """Whether a window has all of what lies side by side in the tensor's memory."""
    base, relation = peel(source)
    inner = max((dim for dim, size in enumerate(base.shape) if size != 1), default=None)
    return inner is not None and any(
        dim == inner and sizes[axis] == source.shape[axis] for axis, dim in enumerate(relation)
    )


def _is_great(op: Op, vectors: frozenset[int], tuning: Tuning) -> bool:
    """Whether windows are worth a register each."""
    count = math.prod(op.result.shape[dim] for dim in vectors)
    nbytes = math.prod(op.result.shape) * op.result.dtype.itemsize
    return is_worth_registers(count, nbytes // max(1, count), tuning)


def _readers(
    value: Value, users: Users, vectors: frozenset[int], tensor: TensorEngineSpec
) -> list[_Reader] | None:
    """The products that read a value; None: something else does as well."""
    readers: list[_Reader] = []
    todo = [value]
    while todo:
        seen = todo.pop()
        for user in users.get(seen, ()):
            if user is None:
                return None
            if user.name in VIEWS:
                todo += user.results
                continue
            reader = _reader(user, seen, value, vectors, tensor)
            if reader is None:
                return None
            readers.append(reader)
    return readers


def _reader(
    op: Op, seen: Value, value: Value, vectors: frozenset[int], tensor: TensorEngineSpec
) -> _Reader | None:
    """An operation that multiplies windows; None: it is none, or has not one product of its batch
    for each window."""
    sides = [side for side, operand in enumerate(op.operands) if operand is seen]
    base, relation = peel(seen)
    if op.name != "dot_general" or len(sides) != 1 or base is not value:
        return None
    (side,), numbers = sides, op.attributes["dot_dimension_numbers"]
    prefix = ("lhs", "rhs")[side]
    batch = {relation[dim] for dim in numbers[f"{prefix}_batching_dimensions"]}
    counted = {dim for dim in vectors if value.shape[dim] != 1}
    contracted = numbers[f"{prefix}_contracting_dimensions"]
    depth = math.prod(seen.shape[dim] for dim in contracted)
    dtypes = [operand.dtype for operand in op.operands]
    if not counted <= batch or multiplied(dtypes, op.result.dtype, depth, tensor) is None:
        return None
    return _Reader(op, side, relation)


def _choose(reader: _Reader, op: Op) -> None:
    """Lets a product read the windows of an operation."""
    product, side = reader.product, reader.side
    shape = product.operands[side].shape
    source, *indices = op.operands
    pair = [*product.operands]
    pair[side] = source
    chosen: dict[str, Any] = {
        "chosen_sides": (side,),
        "by": op.name,
        "relation": reader.relation,
        "shape": shape,
        "slice_sizes": tuple(op.attributes.get("slice_sizes", op.result.shape)),
        "dimension_numbers": op.attributes.get("dimension_numbers"),
    }
    product.name, product.operands = "chosen_product", (*pair, *indices)
    product.attributes = {**product.attributes, **chosen}
