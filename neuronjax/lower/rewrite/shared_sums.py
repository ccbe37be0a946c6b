"""Products of few results of long sums: each physical core adds up a part of the sums.

Cores share out columns of a product, and each then loads all of the other operand; of few columns
the array has idle ones besides. Gradients of weights are such products, over all positions of a
batch of images. With the sums shared out, each core loads a part of both operands, and the parts of
the results are added in another kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neuronjax.formats import FLOAT32
from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.chain import elementwise
from neuronjax.lower.chain.boxes import Axis
from neuronjax.lower.product.blocking import share_of_core
from neuronjax.lower.product.convolution import PARTS, parted_dimension
from neuronjax.lower.product.panels import blocks
from neuronjax.lower.rates import Rates
from neuronjax.lower.rewriter import Rewrite, Writer
from neuronjax.machine.specs import MOVING_COLUMNS, PARTITIONS
from neuronjax.machine.timings import INSTRUCTION_CYCLES
from neuronjax.program.element_types import bytes_of


@dataclass(frozen=True)
class _Work:
    """A product by its sizes, with the bytes of its operands and passes through the array."""

    #: Sizes of the dimensions of rows and of columns.
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    depth: int
    nbytes: tuple[int, int]
    passes: int

    def time(self, cut: tuple[int, int, int], rates: Rates) -> float:
        """The time in ns with rows, columns and sums cut into so many parts, one for each core.

        An operand is loaded again for every block of the other one's columns.
        """
        (left, right), (of_rows, of_columns, of_sums) = self.nbytes, cut
        (rows, tall), (columns, wide) = _share(self.rows, of_rows), _share(self.columns, of_columns)
        squares = (
            math.ceil(rows / tall)
            * math.ceil(columns / wide)
            * min(
                math.ceil(a / PARTITIONS) * max(b, INSTRUCTION_CYCLES)
                for a, b in ((tall, wide), (wide, tall))
            )
        )
        steps = math.ceil(self.depth / of_sums / PARTITIONS)
        array = steps * squares * self.passes * rates.column_ns
        left *= of_columns * math.ceil(columns / wide)
        right *= of_rows * math.ceil(rows / tall)
        return max(array, (left + right) / rates.cores / rates.bytes_per_ns)

    def is_faster_in_parts(self, rates: Rates) -> bool:
        """Whether cores should share out the sums, whose parts are stored, loaded and added."""
        parts = 2 * math.prod((*self.rows, *self.columns)) * bytes_of(FLOAT32)
        joined = parts / rates.bytes_per_ns + 2 * rates.transfer_ns
        whole = min(self.time(cut, rates) for cut in ((rates.cores, 1, 1), (1, rates.cores, 1)))
        return self.time((1, 1, rates.cores), rates) + joined < whole


def _share(sizes: Sequence[int], cores: int) -> tuple[int, int]:
    """What the busiest core has of some dimensions, and of it in a block: dimensions are cut
    between their elements."""
    axes = [Axis(dim, size) for dim, size in enumerate(sizes)]
    width = math.prod(sizes)
    most = min(math.ceil(width / cores), MOVING_COLUMNS)
    block = max(block.size for block in blocks(axes, most))
    return share_of_core(width, block, cores), block


def dot_general(writer: Writer, op: Op) -> Sequence[Value] | None:
    """The sum of products over parts of the contracted dimension, where that is faster."""
    numbers, cores = op.attributes["dot_dimension_numbers"], writer.rates.cores
    sides = ("lhs", "rhs")
    contracted = [numbers[f"{side}_contracting_dimensions"] for side in sides]
    if numbers["lhs_batching_dimensions"] or not _is_plain(op):
        return None
    shape = op.operands[0].shape
    longest = max(range(len(contracted[0])), key=lambda n: shape[contracted[0][n]], default=None)
    if longest is None or shape[contracted[0][longest]] % cores:
        return None
    depth = math.prod(shape[axis] for axis in contracted[0])
    free = len(shape) - len(contracted[0])
    if not _pays(op, (op.result.shape[:free], op.result.shape[free:]), depth, writer.rates):
        return None
    parted, given = [], dict(numbers)
    for side, operand, axes in zip(sides, op.operands, contracted, strict=True):
        axis = axes[longest]
        size = operand.shape[axis] // cores
        parted.append(
            writer.reshape(
                operand, (*operand.shape[:axis], cores, size, *operand.shape[axis + 1 :])
            )
        )
        given[f"{side}_batching_dimensions"] = (axis,)
        given[f"{side}_contracting_dimensions"] = tuple(n + (n >= axis) for n in axes)
    parts = writer.add(
        "dot_general", *parted, shape=(cores, *op.result.shape), dtype=np.float32,
        **{**op.attributes, "dot_dimension_numbers": given},
    )  # fmt: skip
    return [_added(writer, parts, op.result.dtype)]


def convolution(writer: Writer, op: Op) -> Sequence[Value] | None:
    """The sum of convolutions with parts of the window or of the features, where that is faster."""
    a, numbers, cores = op.attributes, op.attributes["dimension_numbers"], writer.rates.cores
    if PARTS in a or a["feature_group_count"] * a["batch_group_count"] > 1 or not _is_plain(op):
        return None
    kernel = op.operands[1].shape
    columns = op.result.shape[numbers["output_feature_dimension"]]
    places = (numbers["output_batch_dimension"], *numbers["output_spatial_dimensions"])
    rows = tuple(op.result.shape[axis] for axis in places)
    depth = math.prod(kernel) // max(columns, 1)
    sizes = (rows, (columns,))
    if parted_dimension(op, cores) is None or not _pays(op, sizes, depth, writer.rates):
        return None
    later = {
        name: [axis + 1 for axis in axes] if isinstance(axes, Sequence) else axes + 1
        for name, axes in numbers.items()
        if name.startswith("output")
    }
    parts = writer.add(
        "convolution", *op.operands, shape=(cores, *op.result.shape), dtype=np.float32,
        **{**a, "dimension_numbers": {**numbers, **later}, PARTS: cores},
    )  # fmt: skip
    return [_added(writer, parts, op.result.dtype)]


def _is_plain(op: Op) -> bool:
    """Whether the Tensor engine adds up numbers in FP32, on one core or another."""
    values = (*op.operands, op.result)
    return len(op.operands) == 2 and all(elementwise.is_float(value.dtype) for value in values)


def _pays(op: Op, sizes: tuple[tuple[int, ...], tuple[int, ...]], depth: int, rates: Rates) -> bool:
    if rates.cores == 1 or not math.prod(op.result.shape) * depth:
        return False
    left, right = (math.prod(value.shape) * value.dtype.itemsize for value in op.operands)
    passes = 4 if any(value.dtype == np.float32 for value in op.operands) else 1
    return _Work(*sizes, depth, (left, right), passes).is_faster_in_parts(rates)


def _added(writer: Writer, parts: Value, dtype: np.dtype) -> Value:
    """The sum of values along a first dimension."""
    shape = parts.shape[1:]
    total, *others = (
        writer.reshape(writer.slice(parts, 0, at, at + 1), shape) for at in range(parts.shape[0])
    )
    for part in others:
        total = writer.add("add", total, part)
    return writer.convert(total, dtype)


REWRITES: Mapping[str, Rewrite] = {"dot_general": dot_general, "convolution": convolution}
"""Operation -> what it is in parts."""
