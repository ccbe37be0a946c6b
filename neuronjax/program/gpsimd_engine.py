"""Instructions of the GpSimd engine: patterns, selections by position, gathers within SBUF.

The engine cannot access PSUM. Each of its eight cores is connected to 16 adjacent partitions.
"""

from __future__ import annotations

from dataclasses import field

from neuronjax.machine.specs import Engine
from neuronjax.program.affine import ZERO, Affine
from neuronjax.program.instruction import READ, UPDATE, WRITE, Instruction, instruction
from neuronjax.program.operand import Access, Dim, Immediate, Scalar
from neuronjax.program.operators import AluOp, CustomFunction, PartitionReduction

_GPSIMD = (Engine.GPSIMD,)


@instruction("iota", _GPSIMD)
class Iota(Instruction):
    """dst[p, …] = offset + p * channel_multiplier + Σ step * index, in 32-bit integers.

    `pattern` has up to four dimensions (step, count); their counts multiply to dst's elements.
    """

    dst: Access = field(metadata=WRITE)
    pattern: tuple[Dim, ...]
    offset: Affine = ZERO
    channel_multiplier: int = 0


@instruction("affine_select", _GPSIMD)
class AffineSelect(Instruction):
    """dst = on_true where cmp_op(the value that `iota` would write, 0), else on_false."""

    dst: Access = field(metadata=WRITE)
    pattern: tuple[Dim, ...]
    channel_multiplier: int
    on_true: Access = field(metadata=READ)
    on_false: Immediate = field(metadata=READ)
    cmp_op: AluOp = AluOp.EQUAL
    offset: Affine = ZERO


@instruction("tensor_partition_reduce", _GPSIMD)
class PartitionReduce(Instruction):
    """dst = op over the partitions of data."""

    dst: Access = field(metadata=WRITE)
    op: PartitionReduction
    data: Access = field(metadata=READ)


@instruction("local_gather", _GPSIMD)
class LocalGather(Instruction):
    """Each core gathers from its 16 partitions of src with the indices in the same partitions.

    Indices (uint16) are taken partition by partition; each moves `elements_per_index` neighbours.
    """

    dst: Access = field(metadata=WRITE)
    src: Access = field(metadata=READ)
    index: Access = field(metadata=READ)
    elements_per_index: int = 1
    valid_indices: int | None = None


@instruction("nc_n_gather", _GPSIMD)
class Gather(Instruction):
    """dst[p, i] = data[p, indices[p, i]], free dimensions flattened."""

    dst: Access = field(metadata=WRITE)
    data: Access = field(metadata=READ)
    indices: Access = field(metadata=READ)


@instruction("nonzero_with_count", _GPSIMD)
class NonzeroWithCount(Instruction):
    """Indices of non-zero elements, then padding, then their number, in every 16th partition.

    The other partitions of dst keep their values.
    """

    dst: Access = field(metadata=WRITE)
    src: Access = field(metadata=READ)
    index_offset: Affine = ZERO
    padding: int = -1


@instruction("topk", _GPSIMD)
class TopK(Instruction):
    """The K greatest of `n` BF16 values, laid out over 16 partitions, and their indices.

    Element i lies at partition i % 16, position i // 16. K is the free size of `values`, which are
    in ascending order.
    """

    values: Access = field(metadata=WRITE)
    indices: Access = field(metadata=WRITE)
    src: Access = field(metadata=READ)
    n: int


@instruction("sequence_bounds", _GPSIMD)
class SequenceBounds(Instruction):
    """The start and end of each element's segment; there is one partition."""

    dst: Access = field(metadata=WRITE)
    segment_ids: Access = field(metadata=READ)


@instruction("custom_op", _GPSIMD, page="Neuron docs, Custom C++ operators")
class CustomOp(Instruction):
    """dst = function(srcs), element by element: a C++ operator on the engine's own processors.

    It does what no other instruction does exactly: 64-bit and wrapping integers, roundings,
    remainders. It computes in the type of the first source that has one; if all are constants, one
    of them must have a type. Integers are exact, floating-point functions are rounded once, on
    write.
    """

    dst: Access = field(metadata=WRITE)
    function: CustomFunction
    srcs: tuple[Scalar, ...] = field(metadata=READ)


@instruction("core_barrier", tuple(sorted(Engine, key=lambda engine: engine is not Engine.GPSIMD)))
class CoreBarrier(Instruction):
    """Both cores of a logical core wait for each other: `data` is complete afterwards."""

    data: Access = field(metadata=UPDATE)
    cores: tuple[int, ...] = (0, 1)
    engine: Engine = Engine.GPSIMD
