"""Tiles of few partitions that lie beside each other, at the same bytes of other partitions.

Without an address, a tile begins at partition 0. Where SBUF is short, those of up to 64 partitions
take turns between partitions 0 and 64, and those of up to 32 between all four quarters: accesses
that were allowed stay allowed. Instructions in which partitions have a meaning keep their tiles.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from neuronjax.lower.write.rebuild import on_buffers
from neuronjax.nki.tracing import Trace
from neuronjax.program import dma, scalar_engine, vector_engine
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Buffer, Memory
from neuronjax.program.program import Kernel

_LANES = 128
_QUARTER = 32
_BY_LANE: tuple[type[Instruction], ...] = (
    dma.DmaCopy,
    vector_engine.Memset,
    vector_engine.TensorCopy,
    vector_engine.CopyPredicated,
    vector_engine.TensorTensor,
    vector_engine.TensorScalar,
    vector_engine.ScalarTensorTensor,
    vector_engine.TensorReduce,
    vector_engine.Reciprocal,
    scalar_engine.Activate,
    scalar_engine.ActivateReduce,
)
"""Instructions that compute every partition for itself, wherever its operands lie."""


def beside(kernel: Kernel, trace: Trace) -> Kernel:
    """The kernel with tiles of few partitions on other partitions."""
    if trace.aliases:
        return kernel
    fixed = {
        access.buffer.name
        for instruction in trace.instructions
        if not isinstance(instruction, _BY_LANE)
        for access in instruction.accesses()
    }
    tiles = _in_turn([tile for tile in kernel.buffers if tile.name not in fixed and _is_low(tile)])
    return on_buffers(kernel, tiles)


def _is_low(tile: Buffer) -> bool:
    return tile.memory is Memory.SBUF and tile.address is None and tile.partitions <= _LANES // 2


def _in_turn(tiles: list[Buffer]) -> Mapping[str, Buffer]:
    """The tiles by name, those of about one size in turn on other partitions."""
    turned = {}
    taken = 0
    for tile in sorted(tiles, key=lambda tile: -tile.extent):
        step = _QUARTER if tile.partitions <= _QUARTER else _LANES // 2
        taken = -(-taken // step) * step % _LANES
        turned[tile.name] = dataclasses.replace(tile, partition=taken)
        taken += step
    return turned
