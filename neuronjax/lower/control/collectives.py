"""Collectives between ranks, on whole tensors in HBM, where they go along the first dimension.

For another dimension the source is laid out with that one outermost, and the result is seen with it
in its place: the copy is of the smaller side where sizes differ, and nothing is copied afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from neuronjax.hlo.graph import Graph, Op, Value, refuse
from neuronjax.lower import region
from neuronjax.lower.chain.boxes import Region
from neuronjax.lower.chain.positions import Position
from neuronjax.lower.chain.sweep import Sweep, Swept
from neuronjax.lower.operations import reducer
from neuronjax.lower.scope import Scope
from neuronjax.lower.values.storage import is_native, storage_of
from neuronjax.lower.values.view import View, dense_strides, whole_view
from neuronjax.lower.write.builder import KernelBuilder
from neuronjax.program.affine import Affine
from neuronjax.program.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectiveInstruction,
    Groups,
    Permute,
    RankId,
    ReduceScatter,
)
from neuronjax.program.control import RegisterStore
from neuronjax.program.operand import Access, Buffer, Dim
from neuronjax.program.operators import AluOp

Make = Callable[..., CollectiveInstruction]
"""Makes a collective of its `dsts` and `srcs`."""

NATIVE: Mapping[str, AluOp] = {
    "add": AluOp.ADD, "maximum": AluOp.MAXIMUM, "minimum": AluOp.MINIMUM,
}  # fmt: skip
"""Regions of one operation that collectives compute."""
_OF_TRUTH: Mapping[str, AluOp] = {
    "add": AluOp.MAXIMUM, "or": AluOp.MAXIMUM, "maximum": AluOp.MAXIMUM,
    "multiply": AluOp.MINIMUM, "and": AluOp.MINIMUM, "minimum": AluOp.MINIMUM,
}  # fmt: skip
"""The same for truth values, which are 0 and 1."""


def all_reduce(scope: Scope, op: Op) -> None:
    """All tensors at once if collectives have the operator; else what each rank has is gathered."""
    groups = groups_of(scope, op)
    sources = [_laid_out(scope, value) for value in op.operands]
    targets: dict[AluOp, list[int]] = {}
    for number, value in enumerate(op.operands):
        operator = _operator(op, value)
        if operator is not None:
            targets.setdefault(operator, []).append(number)
            continue
        tensors = _gathered(scope, op, sources[number], groups)
        _reduce_locally(scope, op, tensors, len(groups[0]), scope.result(op.results[number]))
    for operator, numbers in targets.items():
        made = [scope.result(op.results[number]) for number in numbers]
        make = partial(AllReduce, groups=groups, op=operator)
        _exchange(scope, op, make, [sources[number] for number in numbers], made)


def all_gather(scope: Scope, op: Op) -> None:
    """The dimension outermost, then side by side."""
    axis, groups = op.attributes["all_gather_dim"], groups_of(scope, op)
    for operand, result in zip(op.operands, op.results, strict=True):
        source = _laid_out(scope, operand, axis)
        target = _target(scope, result, axis)
        _exchange(scope, op, partial(AllGather, groups=groups), [source], [target])


def reduce_scatter(scope: Scope, op: Op) -> None:
    """The dimension outermost, then a share of the total for each rank."""
    axis, groups = op.attributes["scatter_dimension"], groups_of(scope, op)
    operator = _operator(op, op.operands[0])
    if operator is None:
        _reduce_scatter_locally(scope, op, axis, groups)
        return
    source = _laid_out(scope, op.operands[0], axis)
    target = _target(scope, op.result, axis)
    _exchange(scope, op, partial(ReduceScatter, groups=groups, op=operator), [source], [target])


def _reduce_scatter_locally(scope: Scope, op: Op, axis: int, groups: Groups) -> None:
    """Every rank gets the shares that are its own, and reduces them."""
    source = _laid_out(scope, op.operands[0], axis)
    shares = scope.scratch((source.elements,), source.dtype)
    _exchange(scope, op, partial(AllToAll, groups=groups), [source], [shares])
    _reduce_locally(scope, op, shares, len(groups[0]), _target(scope, op.result, axis))


def all_to_all(scope: Scope, op: Op) -> None:
    """Shares outermost, then the dimension along which they are joined."""
    a, groups = op.attributes, groups_of(scope, op)
    count, split, joined = a["split_count"], a["split_dimension"], a["concat_dimension"]
    for operand, result in zip(op.operands, op.results, strict=True):
        view = scope.view(operand).split(split, count)
        # `split` is now the number of a share; the joined dimension may have moved behind it.
        inner = joined + (joined >= split)
        rest = [d for d in range(len(view.shape)) if d not in (split, inner)]
        source = _dense(scope, view.along([split, inner, *rest]))
        target = _target(scope, result, joined)
        _exchange(scope, op, partial(AllToAll, groups=groups), [source], [target])


def collective_permute(scope: Scope, op: Op) -> None:
    """Tensors travel along pairs of ranks."""
    pairs = tuple(
        (int(a), int(b)) for a, b in np.reshape(op.attributes["source_target_pairs"], (-1, 2))
    )
    for operand, result in zip(op.operands, op.results, strict=True):
        source, target = _laid_out(scope, operand), scope.result(result)
        _exchange(scope, op, partial(Permute, pairs=pairs), [source], [target])


def collective_broadcast(scope: Scope, op: Op) -> None:
    """What the first rank of each group has: gathered, and the rest not looked at."""
    groups = groups_of(scope, op)
    if sorted(rank for group in groups for rank in group) != list(range(scope.unit.ranks)):
        raise refuse(op, "its groups leave out some ranks")
    (operand,), (result,) = op.operands, op.results
    gathered = _gathered(scope, op, _laid_out(scope, operand), groups)
    scope.views[result] = View(gathered, result.shape, dense_strides(result.shape))


def replica_id(scope: Scope, op: Op) -> None:
    """The rank, by way of a register."""

    def write(builder: KernelBuilder, _: list[View], buffers: list[Buffer]) -> None:
        rank = scope.unit.register(scope.unit.ranks - 1, "rank")
        builder.emit(RankId(dst=rank))
        dst = Access(buffer=buffers[0], dims=(Dim(1, 1),))
        builder.emit(RegisterStore(dst=dst, src=rank))

    scope.kernel("rank", [op], ("rank",), [], [scope.result(op.result)], write)


def partition_id(scope: Scope, op: Op) -> None:
    """0: programs for partitions have become programs for replicas."""
    scope.views[op.result] = whole_view(scope.unit.constant(np.zeros((), np.uint32)), ())


def groups_of(scope: Scope, op: Op) -> Groups:
    """The replica groups; none are one group of all ranks."""
    groups = np.asarray(op.attributes["replica_groups"])
    if not groups.size:
        return (tuple(range(scope.unit.ranks)),)
    return tuple(tuple(int(rank) for rank in group if rank >= 0) for group in groups)


def _operator(op: Op, value: Value) -> AluOp | None:
    """The operator of a region, if collectives have it for a type.

    Raises:
      UnsupportedProgramError: engines do not compute with the type.
    """
    if not is_native(value.dtype) or not region.is_emittable(op.regions[0]):
        raise refuse(op, "no engine can reduce these operands")
    known = _OF_TRUTH if value.dtype == np.bool_ else NATIVE
    return known.get(reducer(op) or "")


def _laid_out(scope: Scope, value: Value, axis: int = 0) -> Buffer:
    """A dense buffer of a value with dimension `axis` outermost."""
    view = scope.view(value)
    rest = [d for d in range(len(view.shape)) if d != axis]
    return _dense(scope, view.along([axis, *rest] if view.shape else []))


def _dense(scope: Scope, view: View) -> Buffer:
    if view.is_dense:
        return view.buffer
    buffer = scope.scratch(view.shape, view.buffer.dtype)
    scope.copy(view, whole_view(buffer, view.shape))
    return buffer


def _target(scope: Scope, result: Value, axis: int) -> Buffer:
    """A buffer for a result with dimension `axis` outermost; the result is seen in it."""
    if all(size == 1 for size in result.shape[:axis]):
        return scope.result(result)
    rest = [d for d in range(len(result.shape)) if d != axis]
    order = [axis, *rest]
    shape = tuple(result.shape[d] for d in order)
    buffer = scope.scratch(shape, storage_of(result.dtype).dtype, "v")
    back = [order.index(d) for d in range(len(order))]
    scope.views[result] = whole_view(buffer, shape).along(back)
    return buffer


def _gathered(scope: Scope, op: Op, source: Buffer, groups: Groups) -> Buffer:
    """What all ranks of a group have, one after the other."""
    target = scope.scratch((len(groups[0]) * source.elements,), source.dtype)
    _exchange(scope, op, partial(AllGather, groups=groups), [source], [target])
    return target


def _exchange(
    scope: Scope, op: Op, make: Make, sources: Sequence[Buffer], targets: Sequence[Buffer]
) -> None:
    """Makes a kernel of one collective."""
    count = len(sources)

    def write(builder: KernelBuilder, _: list[View], buffers: list[Buffer]) -> None:
        whole = [Access(buffer=buffer, dims=(Dim(1, buffer.elements),)) for buffer in buffers]
        builder.emit(make(dsts=tuple(whole[count:]), srcs=tuple(whole[:count])))

    key = ("collective", count, _key(make))
    scope.kernel(op.name, [op], key, [], [*sources, *targets], write)


def _key(make: Make) -> tuple[Any, ...]:
    assert isinstance(make, partial)
    return (make.func, tuple(sorted(make.keywords.items(), key=lambda item: item[0])))


def _reduce_locally(scope: Scope, op: Op, source: Buffer, count: int, target: Buffer) -> None:
    """target = the region of `op` over `count` tensors that lie one after the other."""
    (graph,) = op.regions
    shape = (target.elements,)

    def write(builder: KernelBuilder, views: list[View], _: list[Buffer]) -> None:
        sweep = Sweep(builder, shape, frozenset(), [Swept(view, (0,)) for view in views])
        sweep.run(partial(_fold, sweep, graph))

    starts = [Affine(number * target.elements) for number in range(count)]
    views = [View(source, shape, (1,), start) for start in starts]
    key = ("reduce ranks", region.fingerprint(graph))
    scope.kernel(f"{op.name}_local", [op], key, [*views, View(target, shape, (1,))], [], write)


def _fold(sweep: Sweep, graph: Graph, box: Region, at: Position) -> None:
    """Folds one tile of all sources, one after the other; the sweep's last value is the result."""
    last = len(sweep.values) - 1
    total = sweep.load(0, box, box.free, at)
    for number in range(1, last):
        other = sweep.load(number, box, box.free, at)
        result = region.scratch(sweep.builder, total)
        region.apply(sweep.builder, graph, [total, other], [result])
        total = result
    sweep.store(last, box, box.free, at, total)


RULES = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "collective_permute": collective_permute,
    "collective_broadcast": collective_broadcast,
    "replica_id": replica_id,
    "partition_id": partition_id,
}
"""Operation -> rule."""
