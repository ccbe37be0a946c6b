"""DMA: moving data between HBM and SBUF, with casts, transposes, sums, and indices from SBUF.

`engine` starts the transfer and continues; the DMA queue `queue` executes it. Transfers of one
queue execute in order, queues in any order. Signals are sent when the data has arrived.
`descriptors` says who makes the descriptors, `priority` is 0 (first) to 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from neuronjax.machine.specs import Engine
from neuronjax.program.instruction import READ, UPDATE, WRITE, Instruction, instruction, updates
from neuronjax.program.operand import Access
from neuronjax.program.operators import AluOp, DescriptorMode, ExchangeEngine, OutOfBounds

_ANY = (Engine.SYNC, Engine.SCALAR, Engine.GPSIMD, Engine.VECTOR, Engine.TENSOR)
_SOFTWARE = (Engine.GPSIMD,)


@dataclass(frozen=True, kw_only=True, slots=True)
class DmaInstruction(Instruction):
    """The fields of all transfers."""

    queue: int = 0
    priority: int | None = None


@instruction("dma_copy", _ANY)
class DmaCopy(DmaInstruction):
    """dst = src, element by element in the order of the accesses, cast by way of float32."""

    dst: Access = field(metadata=WRITE)
    src: Access = field(metadata=READ)
    descriptors: DescriptorMode = DescriptorMode.STATIC
    out_of_bounds: OutOfBounds = OutOfBounds.ERROR
    engine: Engine = Engine.SYNC


@instruction("dma_gather", _SOFTWARE, page="NKI ISA dma_copy, dma_compute: vector_offset")
class DmaGather(DmaInstruction):
    """dst[p] = table[index[p]], or added to dst if `accumulate`.

    The first of table's `dims` counts its rows; the others, and dst's, walk over one row.
    """

    dst: Access = field(metadata=updates(unless="is_overwriting"))
    table: Access = field(metadata=READ)
    index: Access = field(metadata=READ)
    accumulate: bool = False
    out_of_bounds: OutOfBounds = OutOfBounds.ERROR

    @property
    def is_overwriting(self) -> bool:
        """Whether nothing of dst is left: skipped rows keep what they hold."""
        return not self.accumulate and self.out_of_bounds is OutOfBounds.ERROR


@instruction("dma_scatter", _SOFTWARE, page="NKI ISA dma_copy, dma_compute: vector_offset")
class DmaScatter(DmaInstruction):
    """table[index[p]] = src[p], or added to it if `accumulate`; indices must be unique then.

    The first of table's `dims` counts its rows; rows without an index keep their values.
    """

    table: Access = field(metadata=UPDATE)
    src: Access = field(metadata=READ)
    index: Access = field(metadata=READ)
    accumulate: bool = False
    out_of_bounds: OutOfBounds = OutOfBounds.ERROR


@instruction("dma_transpose", _ANY)
class DmaTranspose(DmaInstruction):
    """dst = src with its axes permuted, partition first: axis i of dst is axis axes[i] of src."""

    dst: Access = field(metadata=WRITE)
    src: Access = field(metadata=READ)
    axes: tuple[int, ...] = (1, 0)
    descriptors: DescriptorMode = DescriptorMode.STATIC
    engine: Engine = Engine.SYNC


@instruction("dma_gather_transpose", _SOFTWARE, page="NKI ISA dma_transpose: indirect transpose")
class DmaGatherTranspose(DmaInstruction):
    """dst = (rows of table that index names)ᵀ; the indices are taken column by column."""

    dst: Access = field(metadata=updates(unless="is_overwriting"))
    table: Access = field(metadata=READ)
    index: Access = field(metadata=READ)
    axes: tuple[int, ...] = (1, 0)
    out_of_bounds: OutOfBounds = OutOfBounds.ERROR

    @property
    def is_overwriting(self) -> bool:
        """Whether nothing of dst is left: skipped rows keep what they hold."""
        return self.out_of_bounds is OutOfBounds.ERROR


@instruction("dma_compute", _ANY)
class DmaCompute(DmaInstruction):
    """dst = reduce_op over srcs, in float32."""

    dst: Access = field(metadata=WRITE)
    srcs: tuple[Access, ...] = field(metadata=READ)
    reduce_op: AluOp = AluOp.ADD
    engine: Engine = Engine.SYNC


@instruction("sendrecv", _ANY)
class SendReceive(DmaInstruction):
    """src goes to dst of one core of the logical core while dst takes the other's src."""

    src: Access = field(metadata=READ)
    dst: Access = field(metadata=WRITE)
    send_to_rank: int
    recv_from_rank: int
    pipe_id: int = 0
    dma_engine: ExchangeEngine = ExchangeEngine.DMA
    engine: Engine = Engine.SYNC


@instruction("device_print", _ANY, page="NKI language device_print")
class DevicePrint(DmaInstruction):
    """Sends src to the host, which shows it behind the words of `prefix`."""

    prefix: str
    src: Access = field(metadata=READ)
    engine: Engine = Engine.GPSIMD
