"""Values that kernels of NKI 0.x assign to parts of tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neuronjax.nki import elementwise, isa, tiles
from neuronjax.nki.constants import OPERATORS, MemoryRegion, Operator
from neuronjax.nki.legacy.lives import lives
from neuronjax.nki.legacy.operands import Masked, Nothing, plain
from neuronjax.nki.legacy.walks import Walk, plain_view
from neuronjax.nki.tensor import Tensor
from neuronjax.nki.tracing import current
from neuronjax.program.dma import DmaInstruction
from neuronjax.program.operand import Access
from neuronjax.program.tensor_engine import Matmul, TensorTranspose


@dataclass(frozen=True)
class LoopReduced:
    """A tile that is to be reduced over the iterations of loops: what `nl.loop_reduce` returns."""

    tile: Masked
    operator: Operator
    #: What it begins with.
    neutral: float


def ranges_of(value: object, shape: Sequence[int]) -> list[tuple[int, int]]:
    if isinstance(value, Walk) and value.region:
        pairs = zip(value.region, value.shape, strict=True)
        return [(low, low + size) for (low, _), size in pairs]
    return [(0, size) for size in shape]


def assign(target: Walk, value: object) -> Tensor | None:
    """Writes a value to a part of a tensor; what is written, as a plain tensor."""
    alive = lives()
    alive.arrive()
    if isinstance(value, Nothing):
        return None
    if isinstance(value, LoopReduced):
        return _reduce_over_loop(target, value)
    if not isinstance(value, Walk):
        view = _destination(target)
        isa.memset(view, value)
        return view
    if value.region:
        target = target.narrowed(ranges_of(value, target.shape))
    source, there = plain_view(value), plain_view(target)
    if (source.storage, source.offset, source.partition, source.strides) == (
        there.storage, there.offset, there.partition, there.strides,
    ):  # fmt: skip
        return there  # what `+=` has made, which Python assigns to where it lies
    view = _destination(target)
    is_shifted = not value.region and view.shape[0] < view.storage.partitions
    if not (is_shifted and _is_of_engine()) and _redirected(source, view):
        return view
    source = plain(value)
    if source.ndim != view.ndim and source.size == view.size:
        source = source.reshape(view.shape)
    if source.shape != view.shape:
        source = elementwise.broadcast_to(source, view.shape)
    if source.storage.on_chip and view.storage.on_chip:
        isa.tensor_copy(view, source)
    else:
        isa.dma_copy(view, source)
    return view


def _destination(target: Walk) -> Tensor:
    target.check_inside()
    view = plain_view(target)
    lives().sums.write(view)
    if view.buffer is MemoryRegion.psum:
        current().accumulated.discard(view.access())
    return view


def is_fresh(source: Tensor) -> bool:
    """Whether the last instruction has made it, and nothing else knows of it."""
    trace = current()
    written = getattr(trace.instructions[-1], "dst", None) if trace.instructions else None
    return (
        isinstance(written, Access)
        and bool(trace.buffers)
        and written.buffer is trace.buffers[-1]
        and source.storage is written.buffer
        and source.size == source.storage.partitions * source.storage.elements
    )


def _is_of_engine() -> bool:
    """Whether an engine has made the last result. In that dialect it lies at the first partition of
    a tile of its own, and the compiler copied it to where part of the partitions were assigned to:
    of RoPE's halves the profile of NKIBench counts three copies of Scalar, of which the kernel
    writes one."""
    instructions = current().instructions
    return bool(instructions) and not isinstance(instructions[-1], DmaInstruction)


def _redirected(source: Tensor, view: Tensor) -> bool:
    """Lets the last instruction, which has made a result, write to where that is wanted."""
    trace = current()
    if not is_fresh(source) or source.dtype != view.dtype or source.shape != view.shape:
        return False
    last: Any = trace.instructions[-1]
    written: Access = last.dst
    is_product = isinstance(last, Matmul | TensorTranspose)
    if is_product and view.buffer is not MemoryRegion.psum:
        return False
    if isinstance(last, DmaInstruction) and view.buffer is MemoryRegion.psum:
        return False
    if not view.storage.on_chip and not isinstance(last, DmaInstruction):
        return False
    trace.accumulated.discard(written)
    destination = view.access()
    trace.instructions[-1] = dataclasses.replace(last, dst=destination)
    trace.buffers.pop()
    if isinstance(last, Matmul):
        trace.accumulated.add(destination)
    return True


def add_to(target: Walk, value: object) -> None:
    """target += value: a product is added up in PSUM, anything else by Vector."""
    alive = lives()
    alive.arrive()
    if isinstance(value, Nothing):
        return
    part = target
    if isinstance(value, Walk) and value.region:
        part = target.narrowed(ranges_of(value, target.shape))
    trace = current()
    last: Any = trace.instructions[-1] if trace.instructions else None
    if isinstance(last, Matmul) and part.buffer is MemoryRegion.psum and isinstance(value, Walk):
        part.check_inside()
        view = plain_view(part)
        begins = alive.sums.begins(view)
        is_sum = view.access() in trace.accumulated
        if (begins or is_sum) and _redirected(plain_view(value), view):
            alive.sums.write(view)
            trace.instructions[-1] = dataclasses.replace(last, dst=view.access(), start=begins)
            return
    plain(part)
    view, operand = _destination(part), plain(value)
    if isinstance(operand, Tensor):
        if operand.buffer is view.buffer is MemoryRegion.psum:  # Vector reads one of them from SBUF
            operand = tiles.copy(operand)
        first, second = elementwise.broadcast_operands(view, operand)
        isa.tensor_tensor(view, first, second, OPERATORS["add"])
    else:
        isa.tensor_scalar(view, view, OPERATORS["add"], operand)


def _reduce_over_loop(target: Walk, reduced: LoopReduced) -> Tensor | None:
    if isinstance(reduced.tile, Nothing):
        return None
    value = plain(reduced.tile)
    lives().fills[target.declaration] = reduced.neutral
    view = _destination(target)
    isa.tensor_tensor(view, view, value, reduced.operator)
    return view
