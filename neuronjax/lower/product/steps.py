"""What products multiply: their dimensions, and contracted elements cut into steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from neuronjax.lower.chain.boxes import Axis
from neuronjax.lower.product.blocking import WIDTH
from neuronjax.lower.product.panels import Block, Operand, blocks
from neuronjax.lower.tuning import Tuning
from neuronjax.machine.specs import PARTITIONS
from neuronjax.program.element_types import bytes_of


@dataclass(frozen=True, slots=True)
class Batch:
    """Products side by side: `size` of them, each so many indices further in some dimensions."""

    size: int
    steps: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Product:
    """Dimensions of a product, by their role, with the sizes that it has in one batch."""

    sizes: tuple[int, ...]
    batches: tuple[Batch, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    contracted: tuple[int, ...]
    #: Whether rows are transposed, too, in which taps of a window lie between features.
    transposes_taps: bool = False

    def axes(self, dims: Sequence[int]) -> list[Axis]:
        return [Axis(dim, self.sizes[dim]) for dim in dims if self.sizes[dim] > 1]

    def count(self, dims: Sequence[int]) -> int:
        return math.prod(self.sizes[dim] for dim in dims)


@dataclass(frozen=True, slots=True)
class Step:
    """Contracted elements that are multiplied together: on partitions, in panels, in loops."""

    partitions: tuple[Axis, ...]
    #: Within a panel.
    inner: tuple[Axis, ...]
    #: Panels, or parts of one that are loaded one by one.
    loops: tuple[Axis, ...]
    base: tuple[tuple[int, int], ...]
    #: Whether neighbours in memory lie in one partition.
    is_major: bool = False
    transposes_taps: bool = False


def is_turned(operand: Operand, step: Step, free: Sequence[Axis]) -> bool:
    """Whether a panel is loaded by rows and transposed: memory runs along its partitions, or along
    taps of a window and then along its partitions."""
    if not step.partitions or step.is_major:
        return False
    along = step.partitions[-1]
    stride = abs(operand.strides[along.dim] * along.step)
    width = math.prod(axis.size for axis in free if operand.strides[axis.dim])
    taps = _taps_between(operand, step, free) if step.transposes_taps else 1
    return width > 1 and stride in (1, taps)


def _taps_between(operand: Operand, step: Step, free: Sequence[Axis]) -> int:
    """Taps of a window that lie side by side in memory and are loaded at once."""
    shared = {operand.memory[axis.dim] for axis in free}
    apart = [axis for axis in step.inner if operand.memory[axis.dim] not in shared]
    taps = 1
    for stride, size in sorted((abs(operand.strides[a.dim] * a.step), a.size) for a in apart):
        taps *= size if stride == taps else 1
    return taps


def steps(
    product: Product, left: Operand, right: Operand, most_taps: int, tuning: Tuning
) -> list[Step]:
    """The contracted elements, cut up; `most_taps` of a window lie in one panel.

    With fewer of them than usual, room is short: then neighbours lie on partitions, too, which
    needs less of it than whole runs in one partition.
    """
    axes = product.axes(product.contracted)
    steps = []
    for block in blocks(axes, PARTITIONS):
        major = _major(product, left, right, block, tuning)
        if major is not None and most_taps == tuning.panel_taps:
            steps.append(major)
            continue
        block = _in_runs(left, right, block)
        apart = [axis for axis in block.loops if _leaves_gaps(product, left, right, axis)]
        loops = [axis for axis in block.loops if axis not in apart]
        loops.sort(key=lambda axis: (_is_shared(left, right, axis), -_distance(left, right, axis)))
        nbytes = max(bytes_of(left.dtype), bytes_of(right.dtype))
        taps = math.prod(axis.size for axis in loops if _is_shared(left, right, axis))
        room = tuning.chunk_bytes // (WIDTH * nbytes)
        room = max(room, min(taps, most_taps)) if most_taps >= room else most_taps
        for chunk in blocks(loops, room):
            base = (*block.base, *chunk.base)
            step = Step(block.tile, chunk.tile, (*apart, *chunk.loops), base)
            steps.append(replace(step, transposes_taps=product.transposes_taps))
    return steps


def _leaves_gaps(product: Product, left: Operand, right: Operand, axis: Axis) -> bool:
    """Whether a panel over an axis would be mostly what lies between its elements: along the same
    memory, other dimensions reach less than half of the way from one to the next."""
    for operand, dims in ((left, product.left), (right, product.right)):
        stride = abs(operand.strides[axis.dim] * axis.step)
        others = [dim for dim in dims if operand.memory[dim] == operand.memory[axis.dim]]
        reach = sum((product.sizes[dim] - 1) * abs(operand.strides[dim]) for dim in others)
        if others and stride > 2 * (reach + abs(operand.strides[axis.dim])):
            return True
    return False


def _distance(left: Operand, right: Operand, axis: Axis) -> int:
    """How far apart neighbours lie in memory, where they are closest."""
    return min(abs(operand.strides[axis.dim] * axis.step) for operand in (left, right))


def _is_shared(left: Operand, right: Operand, axis: Axis) -> bool:
    """Whether it runs along the same memory as another dimension."""
    return any(
        operand.memory.count(operand.memory[axis.dim]) > 1 and operand.strides[axis.dim] != 0
        for operand in (left, right)
    )


def _in_runs(left: Operand, right: Operand, block: Block) -> Block:
    """Neighbours of a dimension that is cut in one partition: runs are longer than an element, and
    windows overlap there. If they alone would lie on partitions, side by side in memory, they are
    loaded by rows and transposed."""
    if not block.tile or not block.loops or block.loops[-1].dim != block.tile[0].dim:
        return block
    cut, count = block.tile[0], block.loops[-1].size
    is_close = any(abs(o.strides[cut.dim] * cut.step) == 1 for o in (left, right))
    if (is_close and len(block.tile) == 1) or not (is_close or _is_shared(left, right, cut)):
        return block
    tile = (replace(cut, step=cut.step * count), *block.tile[1:])
    return replace(block, loops=(*block.loops[:-1], Axis(cut.dim, count, cut.step)), tile=tile)


def _major(
    product: Product, left: Operand, right: Operand, block: Block, tuning: Tuning
) -> Step | None:
    """Neighbours in one partition, if that spares transposes and transfers stay efficient."""
    if len(block.tile) != 1 or len(block.loops) != 1 or block.loops[0].dim != block.tile[0].dim:
        return None
    (inner,), (outer,) = block.tile, block.loops
    pairs = ((left, product.left), (right, product.right))
    along = [(o, dims) for o, dims in pairs if abs(o.strides[inner.dim] * inner.step) == 1]
    if not along or _is_shared(left, right, inner):
        return None
    wide = [o for o, dims in along if product.count(dims) > 1]
    for operand, dims in along:
        run = outer.size * bytes_of(operand.view.buffer.dtype)
        if run < tuning.efficient_run and product.count(dims) > 1:
            return None
    part = Axis(inner.dim, inner.size, inner.step * outer.size)
    rest = Axis(inner.dim, outer.size, inner.step)
    nbytes = max(bytes_of(operand.dtype) for operand in (left, right))
    room = tuning.chunk_bytes // (WIDTH * nbytes)
    for operand in wide:
        room = max(room, tuning.efficient_run // bytes_of(operand.view.buffer.dtype))
    if outer.size % room:
        room = next((n for n in range(room, 2 * room) if outer.size % n == 0), outer.size)
    if room >= outer.size:
        return Step((part,), (rest,), (), block.base, is_major=True)
    chunk = Axis(inner.dim, room, inner.step)
    around = Axis(inner.dim, outer.size // room, inner.step * room)
    return Step((part,), (chunk,), (around,), block.base, is_major=True)
