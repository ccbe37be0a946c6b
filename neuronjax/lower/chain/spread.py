"""A row of memory in all partitions, such as a bias: read once, and spread by the Tensor engine.

A transfer with a stride of 0 over partitions would read and write the row once for each of them.
The product of a column of ones with the row is exact.
"""

from __future__ import annotations

from neuronjax.formats import BFLOAT16, FLOAT16, FLOAT32
from neuronjax.lower.write.builder import KernelBuilder, tile_access
from neuronjax.machine.specs import MOVING_COLUMNS, Engine
from neuronjax.program.dma import DmaCopy
from neuronjax.program.element_types import ElementType, bytes_of
from neuronjax.program.operand import Access, Buffer, Immediate, Memory
from neuronjax.program.tensor_engine import Matmul
from neuronjax.program.vector_engine import Memset

_TYPES = (FLOAT32, BFLOAT16, FLOAT16)


def is_spread(
    builder: KernelBuilder, partitions: int, elements: int, dtype: ElementType, taken: float
) -> bool:
    """Whether the Tensor engine spreads a row of so many elements over so many partitions.

    It needs banks of PSUM beside those `taken`.
    """
    tuning = builder.tuning
    if dtype not in _TYPES or partitions < tuning.spread_partitions:
        return False
    psum = builder.core.psum
    most = min(tuning.tile_elements, (psum.banks - taken) * psum.bank_bytes // bytes_of(FLOAT32))
    return elements * bytes_of(dtype) >= tuning.efficient_run and elements <= most


def spread(builder: KernelBuilder, src: Access, partitions: int) -> Buffer:
    """A tile in PSUM, in float32, that has all elements of src, a row in HBM, in all partitions."""
    elements, dtype = src.elements, src.element_type
    row = builder.tile((1, elements), dtype, name="row")
    ones = builder.tile((1, partitions), dtype, name="ones")
    stationary = tile_access(ones, [partitions], [1])
    builder.emit(Memset(dst=stationary, value=Immediate(1.0), engine=Engine.GPSIMD))
    builder.emit(DmaCopy(dst=tile_access(row, [elements], [1]), src=src))
    most = builder.core.psum.bank_bytes // bytes_of(FLOAT32)
    total = builder.tile((partitions, elements), FLOAT32, Memory.PSUM, name="spread")
    for first in range(0, elements, most):
        count = min(most, elements - first)
        moving = tile_access(row, [count], [1], offset=first)
        dst = tile_access(total, [count], [1], offset=first)
        builder.emit(Matmul(dst=dst, stationary=stationary, moving=moving))
    return total


def banks_in_psum(builder: KernelBuilder, elements: int, taken: float) -> float | None:
    """Banks that a row takes where operations read it in PSUM, beside those `taken`.

    None: it does not stay there. Vector reads a row in PSUM and a tensor of SBUF in half the time
    that two tensors of SBUF take, before it has the ports for both.
    """
    if builder.core.reads_pairs or elements > 2 * MOVING_COLUMNS:
        return None
    # No row crosses a bank that fits into one.
    banks = (1 << (elements - 1).bit_length()) * bytes_of(FLOAT32) / builder.core.psum.bank_bytes
    most = builder.core.psum.banks - 2  # of which sums of products take turns
    return banks if taken + banks <= most else None
