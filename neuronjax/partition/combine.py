"""All-reduces of the same cores become one: a message of many tensors costs one latency.

XLA's combiner, which the program would meet next, comes after passes that only suit a CPU; this one
has its rules. All-reduces of a block belong together if their cores, reductions and element types
are equal, none needs another's result, and no cycle arises with what else was combined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from neuronjax.hlo import module as hlo
from neuronjax.jaxlib_api.mlir import ir

MOST_TENSORS = 256
"""Tensors of one all-reduce: as in XLA:CPU's combiner."""
MOST_BYTES = 1 << 30
"""Bytes of one all-reduce: NxD's `bucket_size_collectives` of 1024 MB, in which it sends the
gradients of data parallelism."""

REDUCED_AS = {"bf16": "f32"} | dict.fromkeys(
    ("f4E2M1FN", "f8E3M4", "f8E4M3", "f8E4M3FN", "f8E4M3FNUZ", "f8E4M3B11FNUZ", "f8E5M2",
     "f8E5M2FNUZ"), "f16",
)  # fmt: skip
"""Narrow types that XLA:CPU, which computes values, reduces as others and rounds at the end; not so
if it is given several tensors at once, so these are left alone."""

_ALL_REDUCE, _CORES = "stablehlo.all_reduce", "replica_groups"


@dataclass
class _Group:
    """All-reduces that become one.

    Attributes:
      members: their places in the block.
      nbytes: of their operands.
      needs: numbers of the groups that a member needs, as a mask.
      is_open: no member of another group needs this one yet.
    """

    members: list[int] = field(default_factory=list)
    nbytes: int = 0
    needs: int = 0
    is_open: bool = True

    def takes(self, nbytes: int) -> bool:
        """Whether there is room for another member."""
        fits = self.nbytes + nbytes <= MOST_BYTES and len(self.members) < MOST_TENSORS
        return self.is_open and fits


def combine_all_reduces(module: ir.Module) -> None:
    """Combines the all-reduces of a module for one core, in place. Needs its MLIR context."""
    blocks: dict[Any, int] = {}

    def visit(op: Any) -> ir.WalkResult:
        if op.name == _ALL_REDUCE:
            blocks[op.block] = blocks.get(op.block, 0) + 1
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for block, count in blocks.items():
        if count > 1:
            _combine([op.operation for op in block.operations])


def _combine(ops: Sequence[Any]) -> None:
    """Combines collectives among the operations of a block."""
    producers = _producers(ops)
    groups = [group.members for group in _groups(ops, producers) if len(group.members) > 1]
    if not groups:
        return
    combined = {members[-1]: _as_single([ops[place] for place in members]) for members in groups}
    end = ops[-1]
    for place in _order(producers, groups):
        op = combined.get(place, ops[place])
        if op != end:
            op.move_before(end)
    for members in groups:
        _replace([ops[place] for place in members], combined[members[-1]])


def _producers(ops: Sequence[Any]) -> list[list[int]]:
    """The places of those operations of a block whose results each one needs, also inside."""
    places = {op: place for place, op in enumerate(ops)}

    def needed(op: Any) -> Iterator[int]:
        for value in op.operands:
            if isinstance(value, ir.OpResult) and value.owner in places:
                yield places[value.owner]
        for region in op.regions:
            for block in region.blocks:
                for inner in block.operations:
                    yield from needed(inner.operation)

    return [sorted(set(needed(op))) for op in ops]


def _groups(ops: Sequence[Any], producers: Sequence[Sequence[int]]) -> list[_Group]:
    groups: list[_Group] = []
    latest: dict[tuple[Any, ...], int] = {}
    number_of: dict[int, int] = {}
    masks: list[int] = []
    for place, op in enumerate(ops):
        needs = 0
        for producer in producers[place]:
            needs |= masks[producer] | (1 << number_of[producer] if producer in number_of else 0)
        masks.append(needs)
        if not _is_candidate(op):
            continue
        key, nbytes = _key(op), hlo.tensor_spec(op.operands[0].type).nbytes
        needs = _all_needed(needs, groups)
        number = latest.get(key)
        if number is None or needs >> number & 1 or not groups[number].takes(nbytes):
            number = latest[key] = len(groups)
            groups.append(_Group())
        for other in _bits(needs):
            groups[other].is_open = False
        group = groups[number]
        group.members.append(place)
        group.nbytes += nbytes
        group.needs |= needs
        number_of[place] = number
    return groups


def _is_candidate(op: Any) -> bool:
    if op.name != _ALL_REDUCE or len(op.operands) != 1:
        return False
    return str(ir.RankedTensorType(op.operands[0].type).element_type) not in REDUCED_AS


def _all_needed(needs: int, groups: Sequence[_Group]) -> int:
    """A mask of groups, with all that those need in turn."""
    while True:
        more = needs
        for number in _bits(needs):
            more |= groups[number].needs
        if more == needs:
            return needs
        needs = more


def _bits(mask: int) -> Iterator[int]:
    return (number for number in range(mask.bit_length()) if mask >> number & 1)


def _key(op: Any) -> tuple[Any, ...]:
    """Equal for all-reduces that can be one: cores, reduction, element type."""
    (block,) = op.regions[0].blocks
    element_type = ir.RankedTensorType(op.operands[0].type).element_type
    return str(op.attributes[_CORES]), str(element_type), *_computation(block)


def _computation(block: Any) -> Iterator[Any]:
    """What a block computes, of its arguments and results by number.

    The text of an operation would say it too, but MLIR numbers the whole function to print one.
    """
    numbers = {value: number for number, value in enumerate(block.arguments)}
    for op in block.operations:
        operands = tuple(numbers.get(value, value) for value in op.operands)
        attributes = tuple((name, str(op.attributes[name])) for name in op.attributes)
        yield op.operation.name, operands, attributes, tuple(str(r.type) for r in op.results)
        numbers |= {result: len(numbers) + number for number, result in enumerate(op.results)}


def _order(producers: Sequence[Sequence[int]], groups: Sequence[Sequence[int]]) -> list[int]:
    """The places of a block in an order in which everything comes after what it needs.

    A group stands for its last member, where that is, or before its first user.
    """
    leader = {place: members[-1] for members in groups for place in members}
    members_of = {members[-1]: members for members in groups}
    order: list[int] = []
    placed: set[int] = set()
    for root in range(len(producers)):
        if leader.get(root, root) != root:
            continue
        waiting = [(root, False)]
        while waiting:
            place, is_ready = waiting.pop()
            if place in placed:
                continue
            if is_ready:
                placed.add(place)
                order.append(place)
                continue
            waiting.append((place, True))
            for member in members_of.get(place, (place,)):
                for producer in reversed(producers[member]):
                    waiting.append((leader.get(producer, producer), False))
    return order


def _as_single(ops: Sequence[Any]) -> Any:
    """Makes one all-reduce of the operands of several, before the last of them."""
    first = ops[0]
    with ir.InsertionPoint(ops[-1]), first.location:
        single = ir.Operation.create(
            _ALL_REDUCE,
            results=[op.results[0].type for op in ops],
            operands=[op.operands[0] for op in ops],
            attributes={_CORES: first.attributes[_CORES]},  # the others are of its result
            regions=1,
        )
    first.clone().regions[0].blocks[0].append_to(single.regions[0])
    return single


def _replace(ops: Sequence[Any], single: Any) -> None:
    for op, result in zip(ops, single.results, strict=True):
        op.results[0].replace_all_uses_with(result)
        op.erase()
