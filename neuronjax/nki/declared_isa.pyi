"""The functions of `nki.isa`, for type checkers.

`python -m tests.nki.declarations` makes this file.
"""

from neuronjax.nki.constants import (
    dge_mode,
    dma_engine,
    engine,
    matmul_perf_mode,
    oob_mode,
    reduce_cmd,
)
from neuronjax.nki.scheduling import NkiInstruction

__all__ = [
    "activate2",
    "activation",
    "activation_reduce",
    "affine_select",
    "bn_aggr",
    "bn_stats",
    "core_barrier",
    "dma_compute",
    "dma_copy",
    "dma_transpose",
    "dropout",
    "exponential",
    "iota",
    "local_gather",
    "max8",
    "memset",
    "nc_find_index8",
    "nc_match_replace8",
    "nc_matmul",
    "nc_matmul_mx",
    "nc_n_gather",
    "nc_stream_shuffle",
    "nc_transpose",
    "nonzero_with_count",
    "quantize_mx",
    "rand2",
    "rand_get_state",
    "rand_set_state",
    "range_select",
    "reciprocal",
    "register_load",
    "register_move",
    "register_store",
    "rng",
    "scalar_tensor_tensor",
    "select_reduce",
    "sendrecv",
    "sequence_bounds",
    "set_rng_seed",
    "tensor_copy",
    "tensor_copy_predicated",
    "tensor_partition_reduce",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_scalar_cumulative",
    "tensor_scalar_reduce",
    "tensor_tensor",
    "tensor_tensor_scan",
    "topk",
]

def dma_copy(
    dst: object,
    src: object,
    priority: object = None,
    oob_mode: oob_mode = oob_mode.error,
    dge_mode: dge_mode = dge_mode.unknown,
    engine: engine = engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """dst = src, element by element in the order of the accesses, cast by way of float32."""

def tensor_copy(
    dst: object, src: object, engine: engine = engine.unknown, name: str | None = None
) -> NkiInstruction:
    """dst = src: bit by bit if the types agree, else by way of float32."""

def memset(
    dst: object, value: object, engine: engine = engine.unknown, name: str | None = None
) -> NkiInstruction:
    """dst = value."""

def tensor_copy_predicated(
    dst: object, src: object, predicate: object, reverse_pred: bool = False, name: str | None = None
) -> NkiInstruction:
    """dst = src where predicate is not 0 (is 0 if reversed); the rest of dst keeps its values."""

def nc_matmul(
    dst: object,
    stationary: object,
    moving: object,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: object = None,
    tile_position: object = (),
    tile_size: object = (),
    perf_mode: matmul_perf_mode = matmul_perf_mode.none,
    name: str | None = None,
) -> NkiInstruction:
    """dst = stationaryᵀ @ moving, or added to dst unless `start`.

    stationary [K, M], moving [K, N], dst [M, N] in PSUM; with double row [K/2, 2, M], [K/2, 2, N].
    `start` opens an accumulation group and overwrites; `stop` marks its last product, and a product
    that `resumes` may be added to a group that has ended. `tile_size` and `tile_position` (rows,
    columns) select a part of the array; None: all of it.
    """

def nc_transpose(
    dst: object, data: object, engine: engine = engine.unknown, name: str | None = None
) -> NkiInstruction:
    """dst = dataᵀ through the array: data [P, F] in SBUF, dst [F, P] in PSUM.

    Before NeuronCore-v3 it is a product with the identity: NaN and infinity spread.
    """

def tensor_tensor(
    dst: object,
    data1: object,
    data2: object,
    op: object,
    engine: engine = engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """dst = data1 op data2. On GpSimd, 32-bit integers are exact."""

def tensor_scalar(
    dst: object,
    data: object,
    op0: object,
    operand0: object,
    reverse0: bool = False,
    op1: object = None,
    operand1: object = None,
    reverse1: bool = False,
    engine: engine = engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """dst = (data op0 operand0) op1 operand1; `reverse` swaps the arguments of an operator."""

def scalar_tensor_tensor(
    dst: object,
    data: object,
    op0: object,
    operand0: object,
    op1: object,
    operand1: object,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """dst = (data op0 operand0) op1 operand1, operand1 a tile."""

def tensor_reduce(
    dst: object,
    op: object,
    data: object,
    axis: object,
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """dst = op over the last `axes` free dimensions of data, negated if `negate`."""

def activation(
    dst: object,
    op: object,
    data: object,
    bias: object = None,
    scale: object = 1.0,
    reduce_op: object = None,
    reduce_res: object = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    name: str | None = None,
) -> NkiInstruction:
    """dst = op(data * scale + bias); the accumulator sums the results."""

def activation_reduce(
    dst: object,
    op: object,
    data: object,
    reduce_op: object,
    reduce_res: object,
    bias: object = None,
    scale: object = 1.0,
    name: str | None = None,
) -> NkiInstruction:
    """dst = op(data * scale + bias); reduce_res = reduce_op over the free dimensions of dst."""

def activate2(
    dst: object,
    op: object,
    data: object,
    imm0: object,
    imm1: object,
    op0: object,
    op1: object,
    relu_param: object = 0.0,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_op: object = None,
    reduce_res: object = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    name: str | None = None,
) -> NkiInstruction:
    """dst = op((data op0 imm0) op1 imm1), with the accumulator reduced by `reduce_op`."""

def exponential(
    dst: object,
    src: object,
    max_value: object = 0.0,
    reduce_res: object = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    reduce_init: object = 0.0,
    name: str | None = None,
) -> NkiInstruction:
    """dst = exp(src - max_value); the accumulator adds dst up."""

def reciprocal(dst: object, data: object, name: str | None = None) -> NkiInstruction:
    """dst = 1 / data, more precise than the Scalar engine's function."""

def tensor_scalar_reduce(
    dst: object,
    data: object,
    op0: object,
    operand0: object,
    reduce_op: object,
    reduce_res: object = None,
    reverse0: bool = False,
    reduce_cmd: reduce_cmd = reduce_cmd.reset_reduce,
    reduce_init: object = None,
    reduce_res_negate: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """dst = data op0 operand0, or operand0 op0 data; the accumulator reduces dst along its free
    dimensions.
    """

def tensor_scalar_cumulative(
    dst: object,
    src: object,
    op0: object,
    op1: object,
    imm0: object,
    imm1: object = None,
    reduce_cmd: reduce_cmd = reduce_cmd.reset_reduce,
    name: str | None = None,
) -> NkiInstruction:
    """dst[i] = op1(op0(src[i], imm0), dst[i - 1]); the accumulator holds the first predecessor."""

def select_reduce(
    dst: object,
    predicate: object,
    on_true: object,
    on_false: object,
    reduce_res: object = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    reduce_op: object = ...,
    reverse_pred: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """dst = on_true where predicate, else on_false; the accumulator takes the maximum of dst."""

def tensor_partition_reduce(
    dst: object, op: object, data: object, name: str | None = None
) -> NkiInstruction:
    """dst = op over the partitions of data."""

def tensor_tensor_scan(
    dst: object,
    data0: object,
    data1: object,
    initial: object,
    op0: object,
    op1: object,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """dst[i] = (data0[i] op0 dst[i - 1]) op1 data1[i]; before the first stands `initial`."""

def nc_n_gather(
    dst: object, data: object, indices: object, name: str | None = None
) -> NkiInstruction:
    """dst[p, i] = data[p, indices[p, i]], free dimensions flattened."""

def nc_find_index8(
    dst: object, data: object, vals: object, name: str | None = None
) -> NkiInstruction:
    """dst = position at which each of 8 values first occurs in its partition, or all ones."""

def nc_match_replace8(
    dst: object,
    data: object,
    vals: object,
    imm: object,
    dst_idx: object = None,
    name: str | None = None,
) -> NkiInstruction:
    """dst = data with the first occurrence of each of 8 values replaced; dst_idx = positions."""

def nc_stream_shuffle(
    dst: object, src: object, shuffle_mask: object, name: str | None = None
) -> NkiInstruction:
    """dst[q + i] = src[q + mask[i]] in every quadrant q of 32 partitions; 255 leaves dst[q + i].

    src has the partitions that the mask takes, such as 1 that all of dst take.
    """

def bn_stats(dst: object, data: object, name: str | None = None) -> NkiInstruction:
    """dst = count, mean and variance * count of the even elements, then of the odd ones."""

def bn_aggr(dst: object, data: object, name: str | None = None) -> NkiInstruction:
    """dst = mean and variance from triples that `bn_stats` wrote."""

def max8(dst: object, src: object, name: str | None = None) -> NkiInstruction:
    """dst = the 8 greatest elements of each partition of src, descending."""

def iota(
    dst: object,
    pattern: object,
    offset: object = 0,
    channel_multiplier: object = 0,
    name: str | None = None,
) -> NkiInstruction:
    """dst[p, …] = offset + p * channel_multiplier + Σ step * index, in 32-bit integers.

    `pattern` has up to four dimensions (step, count); their counts multiply to dst's elements.
    """

def affine_select(
    dst: object,
    pattern: object,
    channel_multiplier: object,
    on_true_tile: object,
    on_false_value: object,
    cmp_op: object = ...,
    offset: object = 0,
    name: str | None = None,
) -> NkiInstruction:
    """dst = on_true where cmp_op(the value that `iota` would write, 0), else on_false."""

def nc_matmul_mx(
    dst: object,
    stationary: object,
    moving: object,
    stationary_scale: object,
    moving_scale: object,
    tile_position: object = None,
    tile_size: object = None,
    accumulate: object = None,
    name: str | None = None,
) -> NkiInstruction:
    """dst = stationaryᵀ @ moving of packed block-scaled operands, or added to dst unless `start`.

    stationary [K/4, M] and moving [K/4, N] of packed type. Scales: one per 8 partitions and packed
    element, four scale partitions in each quadrant of 32.
    """

def dma_transpose(
    dst: object,
    src: object,
    axes: object = None,
    priority: object = None,
    dge_mode: dge_mode = dge_mode.unknown,
    oob_mode: oob_mode = oob_mode.error,
    name: str | None = None,
) -> NkiInstruction:
    """dst = src with its axes permuted, partition first: axis i of dst is axis axes[i] of src."""

def dma_compute(
    dst: object,
    srcs: object,
    reduce_op: object,
    scales: object = None,
    unique_indices: bool = True,
    oob_mode: oob_mode = oob_mode.error,
    name: str | None = None,
) -> NkiInstruction:
    """dst = reduce_op over srcs, in float32."""

def range_select(
    dst: object,
    on_true_tile: object,
    comp_op0: object,
    comp_op1: object,
    bound0: object,
    bound1: object,
    reduce_cmd: reduce_cmd = reduce_cmd.reset_reduce,
    reduce_res: object = None,
    reduce_op: object = ...,
    range_start: object = 0,
    on_false_value: object = -3.4028234663852886e38,
    name: str | None = None,
) -> NkiInstruction:
    """dst = on_true where the position passes both comparisons, else `on_false`.

    The position is range_start plus the flat free index.
    """

def local_gather(
    dst: object,
    src_buffer: object,
    index: object,
    num_elem_per_idx: object = 1,
    num_valid_indices: object = None,
    name: str | None = None,
) -> NkiInstruction:
    """Each core gathers from its 16 partitions of src with the indices in the same partitions.

    Indices (uint16) are taken partition by partition; each moves `elements_per_index` neighbours.
    """

def nonzero_with_count(
    dst: object,
    src: object,
    index_offset: object = 0,
    padding_val: object = -1,
    name: str | None = None,
) -> NkiInstruction:
    """Indices of non-zero elements, then padding, then their number, in every 16th partition.

    The other partitions of dst keep their values.
    """

def topk(
    val_dst: object, idx_dst: object, src: object, n: object, name: str | None = None
) -> NkiInstruction:
    """The K greatest of `n` BF16 values, laid out over 16 partitions, and their indices.

    Element i lies at partition i % 16, position i // 16. K is the free size of `values`, which are
    in ascending order.
    """

def sequence_bounds(dst: object, segment_ids: object, name: str | None = None) -> NkiInstruction:
    """The start and end of each element's segment; there is one partition."""

def quantize_mx(
    dst: object, src: object, dst_scale: object, name: str | None = None
) -> NkiInstruction:
    """dst, dst_scale = src in blocks of 8 partitions × 4 elements with a common scale."""

def rng(dst: object, engine: engine = engine.vector, name: str | None = None) -> NkiInstruction:
    """dst = random bits: the lowest of 32 for each element."""

def rand2(dst: object, min: object, max: object, name: str | None = None) -> NkiInstruction:
    """dst = uniform in [low, high]."""

def rand_set_state(
    src_seeds: object, engine: engine = engine.gpsimd, name: str | None = None
) -> NkiInstruction:
    """The engine's state = seeds: 6 words per lane on GpSimd, 24 on Vector."""

def rand_get_state(
    dst: object, engine: engine = engine.gpsimd, name: str | None = None
) -> NkiInstruction:
    """dst = the engine's state: 6 words per lane on GpSimd, 24 on Vector."""

def set_rng_seed(src_seeds: object, name: str | None = None) -> NkiInstruction:
    """The Vector engine's state from one 32-bit seed."""

def dropout(dst: object, data: object, prob: object, name: str | None = None) -> NkiInstruction:
    """dst = data, an element replaced by zero with probability `prob`."""

def core_barrier(
    data: object, cores: object, engine: engine = engine.gpsimd, name: str | None = None
) -> NkiInstruction:
    """Both cores of a logical core wait for each other: `data` is complete afterwards."""

def sendrecv(
    src: object,
    dst: object,
    send_to_rank: object,
    recv_from_rank: object,
    pipe_id: object = 0,
    dma_engine: dma_engine = dma_engine.dma,
    name: str | None = None,
) -> NkiInstruction:
    """src goes to dst of one core of the logical core while dst takes the other's src."""

def register_move(dst: object, src: object) -> NkiInstruction:
    """dst = src: a register, a constant, or an affine function of loop variables."""

def register_load(dst: object, src: object) -> NkiInstruction:
    """dst = the one element of src, in HBM or SBUF."""

def register_store(dst: object, src: object) -> NkiInstruction:
    """Stores src as the one element of dst, in HBM or SBUF."""
