"""Shapes of element-wise and other instructions, and limits on them.

Sources: the NKI ISA page of each instruction. A row of `SHAPES` lists the operands with the same
partitions and numbers of elements, and those with one element per partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronjax.formats import FLOAT32
from neuronjax.machine.specs import MAX8_CHOSEN, MAX8_ELEMENTS
from neuronjax.program.element_types import bytes_of
from neuronjax.program.operand import Access
from neuronjax.program.operators import ExchangeEngine
from neuronjax.program.rules.site import Complaint, Site
from neuronjax.program.vector_engine import TensorReduce


@dataclass(frozen=True, slots=True)
class Shapes:
    """Operands of one size, and operands of one element per partition."""

    alike: tuple[str, ...] = ()
    vectors: tuple[str, ...] = ()


_COPY = Shapes(("dst", "src"))
_MAP = Shapes(("dst", "data"))
_REDUCED = ("reduce_res",)

SHAPES: Mapping[str, Shapes] = {
    "tensor_tensor": Shapes(("dst", "data1", "data2")),
    "tensor_scalar": Shapes(("dst", "data"), ("operand0", "operand1")),
    "scalar_tensor_tensor": Shapes(("dst", "data", "operand1"), ("operand0",)),
    "tensor_scalar_reduce": Shapes(("dst", "data"), ("operand0", "reduce_init", *_REDUCED)),
    "tensor_scalar_cumulative": Shapes(("dst", "src"), ("imm0", "imm1")),
    "tensor_tensor_scan": Shapes(("dst", "data0", "data1"), ("initial",)),
    "tensor_copy": _COPY,
    "tensor_copy_predicated": Shapes(("dst", "predicate")),
    "select_reduce": Shapes(("dst", "on_true", "predicate"), ("on_false", *_REDUCED)),
    "range_select": Shapes(("dst", "on_true"), ("bound0", "bound1", *_REDUCED)),
    "reciprocal": _MAP,
    "exponential": Shapes(("dst", "src"), ("max_value", "reduce_init", *_REDUCED)),
    "nc_match_replace8": _MAP,
    "activation": Shapes(("dst", "data"), ("bias", "scale", *_REDUCED)),
    "activation_reduce": Shapes(("dst", "data"), ("bias", "scale", *_REDUCED)),
    "activate2": Shapes(("dst", "data"), ("imm0", "imm1", "relu_param", *_REDUCED)),
    "affine_select": Shapes(("dst", "on_true")),
    "nc_n_gather": Shapes(("dst", "indices")),
    "dropout": Shapes(("dst", "data"), ("prob",)),
    "sendrecv": _COPY,
}
"""Mnemonic -> shapes of operands."""

Limit = Callable[[Any], Iterator[tuple[str, bool]]]


def _bn_stats(instruction: Any) -> Iterator[tuple[str, bool]]:
    yield "data of at most 512 elements", instruction.data.free_elements <= 512
    yield "dst of 6 elements", instruction.dst.free_elements == 6


def _bn_aggr(instruction: Any) -> Iterator[tuple[str, bool]]:
    yield "data in triples", instruction.data.free_elements % 3 == 0
    yield "dst of 2 elements", instruction.dst.free_elements == 2


def _eight(access: Access) -> bool:
    return MAX8_CHOSEN <= access.free_elements <= MAX8_ELEMENTS


def _max8(instruction: Any) -> Iterator[tuple[str, bool]]:
    yield "src of 8 to 16,384 elements", _eight(instruction.src)
    yield "dst of 8 elements", instruction.dst.free_elements == 8


def _find_index8(instruction: Any) -> Iterator[tuple[str, bool]]:
    yield "data of 8 to 16,384 elements", _eight(instruction.data)
    yield "vals of 8 elements", instruction.vals.free_elements == 8
    yield "dst of 8 elements", instruction.dst.free_elements == 8


def _match_replace8(instruction: Any) -> Iterator[tuple[str, bool]]:
    yield "vals of 8 elements", instruction.vals.free_elements == 8


def _shuffle(instruction: Any) -> Iterator[tuple[str, bool]]:
    yield "a mask of 32", len(instruction.mask) == 32
    yield (
        "a mask of 0 to 31, or 255",
        all(0 <= lane < 32 or lane == 255 for lane in instruction.mask),
    )
    src, dst = instruction.src, instruction.dst
    yield "as many elements in src as in dst", src.free_elements == dst.free_elements
    taken = [
        lane // 32 * 32 + instruction.mask[lane % 32]
        for lane in range(dst.partitions)
        if len(instruction.mask) == 32 and instruction.mask[lane % 32] != 255
    ]
    yield (
        f"src with the {1 + max(taken, default=0)} partitions that its mask takes",
        src.partitions > max(taken, default=0),
    )


def _pattern(instruction: Any) -> Iterator[tuple[str, bool]]:
    elements = 1
    for dim in instruction.pattern:
        elements *= dim.size
    yield "a pattern of at most 4 dimensions", len(instruction.pattern) <= 4
    yield "as many elements in pattern and dst", elements == instruction.dst.free_elements


def _local_gather(instruction: Any) -> Iterator[tuple[str, bool]]:
    per_core = instruction.index.free_elements * 16
    yield (
        "src and index of the same partitions",
        instruction.src.partitions == instruction.index.partitions,
    )
    yield "partitions in sixteens", instruction.index.partitions % 16 == 0
    yield (
        "1, 2, 4, 8, 16 or 32 elements per index",
        instruction.elements_per_index in (1, 2, 4, 8, 16, 32),
    )
    valid = per_core if instruction.valid_indices is None else instruction.valid_indices
    yield "at most 4096 indices per core, none invented", valid <= min(4096, per_core)


def _nonzero(instruction: Any) -> Iterator[tuple[str, bool]]:
    yield (
        "one more element in dst",
        instruction.dst.free_elements == instruction.src.free_elements + 1,
    )
    yield (
        "dst and src of the same partitions",
        instruction.dst.partitions == instruction.src.partitions,
    )


def _topk(instruction: Any) -> Iterator[tuple[str, bool]]:
    k = instruction.values.free_elements
    yield "partitions in sixteens", instruction.src.partitions % 16 == 0
    yield "8 <= n < 65536", 8 <= instruction.n < 65_536
    yield "1 <= K < 32768 and K <= n", 1 <= k < 32_768 and k <= instruction.n
    yield "as many indices as values", instruction.indices.free_elements == k
    yield "src of n / 16 elements", 16 * instruction.src.free_elements >= instruction.n


def _bounds(instruction: Any) -> Iterator[tuple[str, bool]]:
    yield "one partition", instruction.segment_ids.partitions == instruction.dst.partitions == 1
    yield (
        "two results for each element",
        (instruction.dst.free_elements == 2 * instruction.segment_ids.free_elements),
    )


def _quantize(instruction: Any) -> Iterator[tuple[str, bool]]:
    yield "partitions in thirty-twos", instruction.src.partitions % 32 == 0
    yield "elements in fours", instruction.src.free_elements % 4 == 0
    yield (
        "a quarter of src's elements in dst",
        instruction.dst.free_elements * 4 == instruction.src.free_elements,
    )


def _state(field: str) -> Limit:
    def words(instruction: Any) -> Iterator[tuple[str, bool]]:
        wanted = {"gpsimd": 6, "vector": 24}.get(instruction.engine.value)
        words_given = getattr(instruction, field).free_elements
        yield f"{wanted} words of state on {instruction.engine.value}", words_given == wanted

    return words


def _seed(instruction: Any) -> Iterator[tuple[str, bool]]:
    yield "one seed", instruction.seed.elements == 1


def _single(field: str) -> Limit:
    def single(instruction: Any) -> Iterator[tuple[str, bool]]:
        yield f"{field} of one element", getattr(instruction, field).elements == 1

    return single


def _same_elements(instruction: Any) -> Iterator[tuple[str, bool]]:
    yield "as many elements in src and dst", instruction.src.elements == instruction.dst.elements


def _dma_compute(instruction: Any) -> Iterator[tuple[str, bool]]:
    yield "1 to 16 sources", 1 <= len(instruction.srcs) <= 16
    same = all(src.elements == instruction.dst.elements for src in instruction.srcs)
    yield "as many elements in each source and dst", same


def _rows(field: str) -> Limit:
    def rows(instruction: Any) -> Iterator[tuple[str, bool]]:
        data, dims = getattr(instruction, field), instruction.table.dims
        row = 1
        for dim in dims[1:]:
            row *= dim.size
        yield "a table with a dimension of rows", bool(dims)
        yield "an index for each partition", instruction.index.elements == data.partitions
        yield "a row of the table in each partition", data.free_elements == row

    return rows


def _axes(instruction: Any) -> Iterator[tuple[str, bool]]:
    yield (
        "axes (1, 0), (2, 1, 0) or (3, 1, 2, 0)",
        instruction.axes in ((1, 0), (2, 1, 0), (3, 1, 2, 0)),
    )


def _dma_transpose(instruction: Any) -> Iterator[tuple[str, bool]]:
    yield from _same_elements(instruction)
    yield from _axes(instruction)


def _range_select(instruction: Any) -> Iterator[tuple[str, bool]]:
    with np.errstate(over="ignore"):
        on_false = np.float32(instruction.on_false.value)
    yield "on_false of -3.4028235e+38", on_false == -FLOAT32.max
    last = instruction.range_start + instruction.on_true.free_elements
    yield "positions below 2^24", last <= 1 << FLOAT32.mantissa_bits + 1


def _custom_op(instruction: Any) -> Iterator[tuple[str, bool]]:
    accesses = [src for src in instruction.srcs if isinstance(src, Access)]
    sizes = {1, instruction.dst.free_elements}
    yield (
        "srcs of dst's partitions",
        all(a.partitions == instruction.dst.partitions for a in accesses),
    )
    yield "srcs of dst's elements, or one", all(a.free_elements in sizes for a in accesses)


_EXCHANGED_BYTES = {4: 1024, 2: 512, 1: 256}
"""Bytes of an element -> those of a partition that GpSimd's own DMA exchanges (NKI ISA,
sendrecv)."""


def _exchange(instruction: Any) -> Iterator[tuple[str, bool]]:
    if instruction.dma_engine is ExchangeEngine.GPSIMD_DMA:
        width, src = bytes_of(instruction.src.element_type), instruction.src
        most = _EXCHANGED_BYTES.get(width, 0)
        wanted = f"at most {most} bytes of a partition with gpsimd_dma"
        yield wanted, src.free_elements * width <= most


LIMITS: Mapping[str, Limit] = {
    "sendrecv": _exchange,
    "custom_op": _custom_op,
    "bn_stats": _bn_stats,
    "bn_aggr": _bn_aggr,
    "max8": _max8,
    "nc_find_index8": _find_index8,
    "nc_match_replace8": _match_replace8,
    "nc_stream_shuffle": _shuffle,
    "range_select": _range_select,
    "iota": _pattern,
    "affine_select": _pattern,
    "local_gather": _local_gather,
    "nonzero_with_count": _nonzero,
    "topk": _topk,
    "sequence_bounds": _bounds,
    "quantize_mx": _quantize,
    "rand_set_state": _state("seeds"),
    "rand_get_state": _state("dst"),
    "set_rng_seed": _seed,
    "register_load": _single("src"),
    "register_store": _single("dst"),
    "dma_copy": _same_elements,
    "dma_transpose": _dma_transpose,
    "dma_compute": _dma_compute,
    "dma_gather": _rows("dst"),
    "dma_scatter": _rows("src"),
    "dma_gather_transpose": _axes,
}
"""Mnemonic -> pairs of a requirement in words and whether it holds."""


def shapes(site: Site) -> Iterator[Complaint]:
    """Operands that are combined element by element have the same partitions and elements."""
    row = SHAPES.get(site.instruction.mnemonic)
    if row is None:
        return
    operands = dict(site.accesses())
    lead = operands[row.alike[0]]
    for name in (*row.alike, *row.vectors):
        access = operands.get(name)
        elements = 1 if name in row.vectors else lead.free_elements
        if access and (access.partitions, access.free_elements) != (lead.partitions, elements):
            yield (
                f"{name} of {access.partitions} partitions × {access.free_elements} elements",
                f"{lead.partitions} × {elements}, as {row.alike[0]} has {lead.free_elements}",
            )


def reductions(site: Site) -> Iterator[Complaint]:
    """`tensor_reduce` reduces the last dimensions to one element, and keeps the others."""
    instruction = site.instruction
    if not isinstance(instruction, TensorReduce):
        return
    if not 1 <= instruction.axes <= max(1, len(instruction.data.dims)):
        yield f"{instruction.axes} axes of {len(instruction.data.dims)}", "1 to all free dimensions"
        return
    kept = 1
    for size in instruction.data.sizes[: len(instruction.data.dims) - instruction.axes]:
        kept *= size
    if (instruction.dst.partitions, instruction.dst.free_elements) != (
        instruction.data.partitions,
        kept,
    ):
        actual = f"dst of {instruction.dst.partitions} × {instruction.dst.free_elements}"
        yield actual, f"{instruction.data.partitions} × {kept}"


def limits(site: Site) -> Iterator[Complaint]:
    """Limits of single instructions."""
    check = LIMITS.get(site.instruction.mnemonic)
    for wanted, holds in check(site.instruction) if check else ():
        if not holds:
            sizes = (f"{name} {a.partitions} × {a.free_elements}" for name, a in site.accesses())
            yield f"{site.instruction.mnemonic} with {', '.join(sizes) or 'no operands'}", wanted
