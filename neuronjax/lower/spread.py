"""One row of memory in all partitions, such as a bias: read once, and spread by the Tensor engine.

A transfer with a stride of 0 over partitions would read and write the row once for each of them.
The product of a column of ones with the row is exact.
"""

from __future__ import annotations

from neuronjax.formats import BFLOAT16, FLOAT16, FLOAT32
from neuronjax.lower.builder import KernelBuilder, tile_access
from neuronjax.machine.specs import Engine
from neuronjax.program.dma import DmaCopy
from neuronjax.program.element_types import ElementType, bytes_of
from neuronjax.program.operand import Access, Immediate, Memory
from neuronjax.program.tensor_engine import Matmul
from neuronjax.program.vector_engine import Memset, TensorCopy

_TYPES = (FLOAT32, BFLOAT16, FLOAT16)
_LEAST_PARTITIONS = 32
_LEAST_BYTES = 512
"""Bytes of a row from which on it is worth while."""


def is_spread(partitions: int, elements: int, dtype: ElementType) -> bool:
    """Whether the Tensor engine spreads a row of so many elements over so many partitions."""
    if dtype not in _TYPES or partitions < _LEAST_PARTITIONS:
        return False
    return elements * bytes_of(dtype) >= _LEAST_BYTES


def spread(builder: KernelBuilder, dst: Access, src: Access) -> None:
    """Every partition of dst, a dense tile, gets all elements of src, a row in HBM."""
    elements, dtype = src.elements, dst.element_type
    row = builder.tile((1, elements), dtype, name="row")
    ones = builder.tile((1, dst.partitions), dtype, name="ones")
    one = tile_access(ones, [dst.partitions], [1])
    builder.emit(Memset(dst=one, value=Immediate(1.0), engine=Engine.GPSIMD))
    builder.emit(DmaCopy(dst=tile_access(row, [elements], [1]), src=src))
    most = builder.core.psum.bank_bytes // bytes_of(FLOAT32)
    for first in range(0, elements, most):
        count = min(most, elements - first)
        bank = builder.tile((dst.partitions, count), FLOAT32, Memory.PSUM, name="spread")
        total = tile_access(bank, [count], [1])
        moving = tile_access(row, [count], [1], offset=first)
        builder.emit(Matmul(dst=total, stationary=one, moving=moving))
        part = tile_access(dst.buffer, [count], [1], offset=first, slot=dst.slot)
        builder.emit(TensorCopy(dst=part, src=total))
