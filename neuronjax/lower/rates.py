"""Prices of what plans are made of, read off from the prices of a few instructions."""

from __future__ import annotations

from dataclasses import dataclass

from neuronjax.formats import BFLOAT16, FLOAT32
from neuronjax.lower.prices import Prices
from neuronjax.machine.specs import MOVING_COLUMNS, PARTITIONS
from neuronjax.machine.timings import DMA_BEAT_BYTES
from neuronjax.program.dma import DmaCopy, DmaScatter
from neuronjax.program.element_types import INTEGERS, ElementType, bytes_of
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Dim, Immediate, Memory
from neuronjax.program.operators import Activation, AluOp
from neuronjax.program.scalar_engine import ActivateReduce
from neuronjax.program.tensor_engine import Matmul
from neuronjax.program.vector_engine import TensorScalar, TensorTensor


@dataclass(frozen=True, slots=True)
class Rates:
    """What a core does in a nanosecond, and what its transfers and instructions cost besides."""

    prices: Prices
    #: Physical cores that share what has independent parts, such as a product.
    cores: int
    #: A column of BF16 that passes through the array.
    column_ns: float
    #: A number of FP32 that Vector reads and writes in each partition.
    element_ns: float
    #: A number of each of two tensors of FP32 that Vector reads in each partition.
    pair_ns: float
    #: Bytes that all DMA engines of the core move together.
    bytes_per_ns: float
    #: A descriptor on all of them, beside its bytes.
    descriptor_ns: float
    #: A transfer of 256 KiB that nothing else runs beside, from its trigger on.
    transfer_ns: float
    #: What an instruction of the Scalar engine with a sum takes beside its elements.
    row_sum_ns: float

    @property
    def row_sum_elements(self) -> float:
        """Elements that Vector goes through in the time that a sum takes beside its own."""
        return self.row_sum_ns / self.element_ns

    def run_ns(self, nbytes: float) -> float:
        """Moving a run of so many bytes, one of many."""
        return max(nbytes, DMA_BEAT_BYTES) / self.bytes_per_ns + self.descriptor_ns

    def scatter_ns(self, width: int) -> float:
        """Adding 128 rows of so many numbers to rows of a table, when nothing runs beside it."""
        index = _tile(1, INTEGERS["uint32"])
        return _alone_ns(
            self.prices,
            DmaScatter(table=_rows(width), src=_tile(width), index=index, accumulate=True),
        )

    def step_ns(self, width: int) -> float:
        """An operation on two tensors of so many columns, of which each waits for the last."""
        tile = _tile(width)
        price = self.prices.of(TensorTensor(dst=tile, data1=tile, data2=tile, op=AluOp.ADD))
        return max(price.issue, price.issue + price.latency - price.spread + self.prices.wake_ns)


def rates_of(prices: Prices, cores: int) -> Rates:
    """The rates of a machine: what twice as much adds to a price is proportional, the rest not."""
    size = MOVING_COLUMNS
    elements = [
        prices.of(
            TensorScalar(dst=t, data=t, op0=AluOp.ADD, operand0=Immediate(1.0))
        ).issue
        for t in _tiles(size)
    ]  # fmt: skip
    sums = [
        prices.of(
            ActivateReduce(dst=t, op=Activation.SQUARE, data=t, reduce_res=_tile(1))
        ).issue
        for t in _tiles(size)
    ]  # fmt: skip
    moves = [_work_ns(prices, DmaCopy(dst=t, src=_rows(t.free_elements))) for t in _tiles(size)]
    pairs = [
        prices.of(TensorTensor(dst=t, data1=t, data2=t, op=AluOp.ADD)).issue for t in _tiles(size)
    ]
    nbytes = PARTITIONS * size * bytes_of(FLOAT32)
    product = Matmul(
        dst=_tile(size, FLOAT32, Memory.PSUM),
        stationary=_tile(PARTITIONS, BFLOAT16), moving=_tile(size, BFLOAT16),
    )  # fmt: skip
    return Rates(
        prices=prices,
        cores=cores,
        column_ns=prices.of(product).issue / size,
        element_ns=(elements[1] - elements[0]) / size,
        pair_ns=(pairs[1] - pairs[0]) / size,
        bytes_per_ns=nbytes / (moves[1] - moves[0]),
        descriptor_ns=(2 * moves[0] - moves[1]) / PARTITIONS,
        transfer_ns=_alone_ns(prices, DmaCopy(dst=_tile(size), src=_rows(size))),
        row_sum_ns=2 * sums[0] - sums[1],
    )


def _tile(size: int, dtype: ElementType = FLOAT32, memory: Memory = Memory.SBUF) -> Access:
    """All of a tile of so many elements in each partition."""
    buffer = Buffer(name="tile", memory=memory, dtype=dtype, shape=(PARTITIONS, size))
    return Access(buffer=buffer, partitions=PARTITIONS, dims=(Dim(1, size),))


def _tiles(size: int) -> tuple[Access, Access]:
    """A tile, and one twice as long."""
    return _tile(size), _tile(2 * size)


def _rows(width: int) -> Access:
    """128 rows of so many elements in HBM, with gaps between them."""
    buffer = Buffer(name="rows", memory=Memory.HBM, dtype=FLOAT32, shape=(PARTITIONS, 2 * width))
    return Access(buffer=buffer, dims=(Dim(2 * width, PARTITIONS), Dim(1, width)))


def _work_ns(prices: Prices, copy: DmaCopy) -> float:
    """The work of a transfer on all DMA engines together."""
    move = prices.of(copy).move
    assert move is not None
    return move.work


def _alone_ns(prices: Prices, transfer: Instruction) -> float:
    """A transfer from the begin of its instruction until what waits for it goes on."""
    price = prices.of(transfer)
    move = price.move
    assert move is not None
    begun = price.issue + move.generator + move.start
    return begun + max(move.duration, move.work) + move.completion + prices.wake_ns
