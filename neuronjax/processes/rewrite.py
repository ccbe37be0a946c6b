"""The program of all ranks becomes that of one process: collectives become calls of functions.

The program of a process runs as one replica per core that it has. A replica looks its global rank
up in a table. The calls of one replica are strung on a value that each takes and returns, through
loops and branches too: XLA would otherwise begin several at once, and have no thread left for the
ones that all wait for. The value is the number of the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from neuronjax.errors import FailedPassError, UnsupportedProgramError
from neuronjax.hlo import module as hlo
from neuronjax.hlo.constants import number
from neuronjax.hlo.custom_calls import PYTHON_CALLBACK
from neuronjax.hlo.location import source_line
from neuronjax.hlo.structure import (
    BRANCHES,
    LOOP,
    blocks,
    extend_branches,
    extend_loop,
    inline_calls,
    inner_ops,
    set_yield,
    terminator,
)
from neuronjax.jaxlib_api.mlir import ir, stablehlo
from neuronjax.partition.combine import REDUCED_AS
from neuronjax.processes import collective
from neuronjax.processes.collective import Collective
from neuronjax.processes.reduction import OF_TRUTH_VALUES, REDUCTIONS, Reduction


def separate(
    code: bytes, ranks: Sequence[int], total: int, first_callback: int
) -> tuple[bytes, list[Collective], str]:
    """The program of the process that has ``ranks`` of ``total``, its collectives, and a digest.

    The digest is of the whole program, without lines of source: equal on all processes.

    Its ``main`` has one more argument, a ui32 scalar: the number of the run. Collective i is a call
    of host callback ``first_callback + i``.

    Raises:
      UnsupportedProgramError: a collective that XLA on the CPU does not have either.
      FailedPassError: the result is not a module; a defect of ours.
    """
    with hlo.context(), ir.Location.unknown():
        module = hlo.load(code)
        digest = hashlib.sha256(str(module).encode()).hexdigest()
        inline_calls(module)
        main = hlo.main_function(module)
        run = hlo.add_argument(main, _ui32())
        _replace_rank_ids(module, ranks)
        writer = _Writer(total, first_callback, main.entry_block)
        writer.string(main.entry_block, run)
        count = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), len(ranks))
        module.operation.attributes[hlo.NUM_REPLICAS] = count
        _verify(module)
        return hlo.dump(module), writer.collectives, digest


def _replace_rank_ids(module: ir.Module, ranks: Sequence[int]) -> None:
    """Lets the program see global ranks: each op that asks for one looks it up where it stands."""
    replica_ids: list[Any] = []

    def visit(op: Any) -> ir.WalkResult:
        if op.name == "stablehlo.replica_id":
            replica_ids.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    table = ir.DenseElementsAttr.get(np.array(ranks, np.uint32), type=_ui32(len(ranks)))
    for op in replica_ids:
        with ir.InsertionPoint(op), op.location:
            rank = stablehlo.dynamic_slice(
                stablehlo.ConstantOp(table).result,
                [stablehlo.ReplicaIdOp().result],
                np.array([1], np.int64),
            )
            op.results[0].replace_all_uses_with(stablehlo.reshape(_ui32(), rank))
        op.erase()


def _verify(module: ir.Module) -> None:
    try:
        module.operation.verify()
    except ir.MLIRError as error:
        raise FailedPassError(
            f"the rewriting for several processes left a program that is none: {error}. This is a "
            "bug in neuronjax: please report it with the program's text (NEURONJAX_DUMP_TO=FOLDER)."
        ) from None


class _Writer:
    """Replaces the collectives of a module."""

    def __init__(self, total: int, first_callback: int, entry: Any) -> None:
        self.collectives: list[Collective] = []
        self._total = total
        self._first = first_callback
        with ir.InsertionPoint.at_block_begin(entry):
            self._replica = stablehlo.ReplicaIdOp().result

    def string(self, block: Any, run: Any) -> Any:
        """Strings the collectives of a block on a value; returns the value behind the last."""
        for op in inner_ops(block):
            if op.name in _MEANINGS:
                run = self._call(op, run)
            elif op.name == LOOP and _has_collective(op):
                op = extend_loop(op, [run])
                condition, body = blocks(op)
                self.string(condition, _last(condition.arguments))
                inner = self.string(body, _last(body.arguments))
                set_yield(body, len(terminator(body).operands) - 1, inner)
                run = _last(op.results)
            elif op.name in BRANCHES and _has_collective(op):
                values = [[self.string(branch, run)] for branch in blocks(op)]
                run = _last(extend_branches(op, [_ui32()], values).results)
        return run

    def _call(self, op: Any, run: Any) -> Any:
        make = _MEANINGS[op.name]
        self.collectives.append(make(op, self._total))
        number = self._first + len(self.collectives) - 1
        with ir.InsertionPoint(op), op.location:
            is_reduced = op.name in _REDUCING
            operands = [
                _convert(value, _carried_type(value.type, is_reduced)) for value in op.operands
            ]
            types = [_carried_type(result.type, is_reduced) for result in op.results]
            call = _callback(number, [*operands, self._replica, run], [*types, _ui32()])
            results = list(call.results)
            for old, new in zip(op.results, results, strict=False):
                old.replace_all_uses_with(_convert(new, old.type))
        op.erase()
        return results[-1]


def _ui32(*shape: int) -> ir.Type:
    return ir.RankedTensorType.get(shape, ir.IntegerType.get_unsigned(32))


def _last(values: Any) -> Any:
    return list(values)[-1]


def _has_collective(op: Any) -> bool:
    return any(
        inner.name in _MEANINGS or _has_collective(inner)
        for block in blocks(op)
        for inner in inner_ops(block)
    )


_PACKED = {"i2": "i8", "i4": "i8", "ui2": "ui8", "ui4": "ui8", "f4E2M1FN": "f32"}
"""Types of less than a byte travel as others that hold their values."""


def _carried_type(type_: ir.Type, is_reduced: bool) -> ir.Type:
    """The type in which the values of a collective come to its function."""
    tensor = ir.RankedTensorType(type_)
    table = _PACKED | REDUCED_AS if is_reduced else _PACKED
    other = table.get(str(tensor.element_type))
    return ir.RankedTensorType.get(tensor.shape, ir.Type.parse(other)) if other else type_


def _convert(value: Any, wanted: ir.Type) -> Any:
    return value if value.type == wanted else stablehlo.convert(wanted, value)


def _callback(number: int, operands: list[Any], types: list[ir.Type]) -> Any:
    """A call of a Python function, as JAX's ``emit_python_callback`` writes it."""
    index = ir.IntegerAttr.get(ir.IntegerType.get_unsigned(64), number)
    return ir.Operation.create(
        "stablehlo.custom_call",
        results=types,
        operands=operands,
        attributes={
            "call_target_name": ir.StringAttr.get(PYTHON_CALLBACK),
            "api_version": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 4),
            "has_side_effect": ir.BoolAttr.get(True),
            "backend_config": ir.DictAttr.get({"index": index}),
            "operand_layouts": _row_major([operand.type for operand in operands]),
            "result_layouts": _row_major(types),
        },
    )


def _row_major(types: Sequence[ir.Type]) -> ir.Attribute:
    ranks = [len(ir.RankedTensorType(type_).shape) for type_ in types]
    return ir.ArrayAttr.get(
        [
            ir.DenseIntElementsAttr.get(
                np.array(list(reversed(range(rank))), np.int64), type=ir.IndexType.get()
            )
            for rank in ranks
        ]
    )


def _groups(op: Any, total: int) -> tuple[tuple[int, ...], ...]:
    table = np.asarray(op.attributes["replica_groups"])
    groups = tuple(tuple(int(rank) for rank in row if rank >= 0) for row in table)
    return groups if any(groups) else (tuple(range(total)),)


def _reductions(op: Any) -> list[Reduction]:
    block = op.regions[0].blocks[0]
    body = [inner.name for inner in inner_ops(block)]
    reductions = []
    for value in op.operands:
        element = str(ir.RankedTensorType(value.type).element_type)
        table = OF_TRUTH_VALUES if element == "i1" else REDUCTIONS
        if len(body) != 1 or body[0] not in table:
            raise UnsupportedProgramError(
                f"{op.name} at {source_line(op)} reduces {element} with {' '.join(body)} over the "
                "cores of several processes, which can add, multiply, maximum and minimum. Gather "
                "the values (lax.all_gather) and reduce them on every core."
            )
        reductions.append(table[body[0]])
    return reductions


def _all_reduce(op: Any, total: int) -> Collective:
    return Collective("all_reduce", _groups(op, total), collective.all_reduce(_reductions(op)))


def _all_gather(op: Any, total: int) -> Collective:
    run = collective.all_gather(number(op, "all_gather_dim"))
    return Collective("all_gather", _groups(op, total), run)


def _reduce_scatter(op: Any, total: int) -> Collective:
    run = collective.reduce_scatter(number(op, "scatter_dimension"), _reductions(op))
    return Collective("reduce_scatter", _groups(op, total), run)


def _all_to_all(op: Any, total: int) -> Collective:
    names = ("split_dimension", "concat_dimension", "split_count")
    split, joined, count = (number(op, name) for name in names)
    run = collective.all_to_all(split, joined, count)
    return Collective("all_to_all", _groups(op, total), run)


def _broadcast(op: Any, total: int) -> Collective:
    return Collective("collective_broadcast", _groups(op, total), collective.broadcast)


def _permute(op: Any, total: int) -> Collective:
    table = np.asarray(op.attributes["source_target_pairs"]).reshape(-1, 2)
    pairs = [(int(source), int(target)) for source, target in table]
    return Collective("collective_permute", (tuple(range(total)),), collective.permute(pairs))


_MEANINGS: Mapping[str, Callable[[Any, int], Collective]] = {
    "stablehlo.all_gather": _all_gather,
    "stablehlo.all_reduce": _all_reduce,
    "stablehlo.all_to_all": _all_to_all,
    "stablehlo.collective_broadcast": _broadcast,
    "stablehlo.collective_permute": _permute,
    "stablehlo.reduce_scatter": _reduce_scatter,
}
"""Collective of StableHLO -> what it means, among so many ranks."""

_REDUCING = frozenset({"stablehlo.all_reduce", "stablehlo.reduce_scatter"})
