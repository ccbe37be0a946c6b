"""Convolutions of dilated inputs, which are transposed convolutions, without the zeros.

Of the taps of a window, those that meet elements rather than zeros are d apart where the input is
dilated by d, and the first of them depends on the position modulo d alone. So d neighbouring
positions of the result are features of one convolution over the input as it is: per dimension

    y[o] = z[a, r],  a·d + r = o - low + d - 1,  z[a, r] = Σ_j x[a + j] · w[j·d + d - 1 - r]

with `low` zeros in front, the window padded to a multiple of d; where it has fewer taps than d, the
phases without any are zeros. (The sub-pixel convolution of Shi
et al., "Is the deconvolution layer the same as a convolutional layer?", arXiv:1609.07009.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neuronjax.hlo.graph import Op, Value
from neuronjax.hlo.module import TensorSpec
from neuronjax.lower.rewriter import Rewrite, Writer


@dataclass(frozen=True)
class _Dimension:
    """A spatial dimension: input, window and result, with what surrounds and dilates the input."""

    size: int
    taps: int
    results: int
    low: int
    dilation: int

    @property
    def phases(self) -> int:
        """Values of r that meet taps; they are the last ones."""
        return min(self.taps, self.dilation)

    @property
    def window(self) -> int:
        """Taps of one phase."""
        return -(-self.taps // self.dilation)

    @property
    def start(self) -> int:
        """a·d + r of the first result."""
        return self.dilation - 1 - self.low

    @property
    def first(self) -> int:
        return self.start // self.dilation

    @property
    def count(self) -> int:
        """Values of a."""
        return (self.start + self.results - 1) // self.dilation - self.first + 1

    @property
    def padding(self) -> tuple[int, int]:
        """The padding of the input as it is."""
        return -self.first, self.first + self.count - 1 + self.window - self.size


def convolution(writer: Writer, op: Op) -> Sequence[Value] | None:
    """A convolution whose input is dilated, as one of the input itself and a rearranged result."""
    a, numbers = op.attributes, op.attributes["dimension_numbers"]
    window = range(len(a["window_strides"]))
    dilated = [i for i in window if int(a["lhs_dilation"][i]) > 1]
    if not dilated or a["batch_group_count"] > 1 or not math.prod(op.result.shape):
        return None
    if any(int(a["window_strides"][i]) > 1 or int(a["rhs_dilation"][i]) > 1 for i in dilated):
        return None
    data, kernel = op.operands
    spatial, taps = numbers["input_spatial_dimensions"], numbers["kernel_spatial_dimensions"]
    places = numbers["output_spatial_dimensions"]
    split = {
        i: _Dimension(
            data.shape[spatial[i]], kernel.shape[taps[i]], op.result.shape[places[i]],
            int(a["padding"][i][0]), int(a["lhs_dilation"][i]),
        )
        for i in dilated
    }  # fmt: skip
    groups = a["feature_group_count"]
    phases = math.prod(dimension.phases for dimension in split.values())
    features = numbers["output_feature_dimension"]
    shape = list(op.result.shape)
    shape[features] *= phases
    padding = [tuple(int(n) for n in pair) for pair in a["padding"]]
    reversal = list(a["window_reversal"] or [False for _ in window])
    for i, dimension in split.items():
        shape[places[i]] = dimension.count
        padding[i] = dimension.padding
        reversal[i] = False
    attributes = {
        **a,
        "lhs_dilation": tuple(1 if i in split else int(a["lhs_dilation"][i]) for i in window),
        "padding": tuple(padding),
        "window_reversal": tuple(reversal),
    }
    flipped = [i for i in dilated if a["window_reversal"] is not None and a["window_reversal"][i]]
    if flipped:
        kernel = writer.add("reverse", kernel, dimensions=tuple(taps[i] for i in flipped))
    kernel = _phases(
        writer, kernel, {taps[i]: dimension for i, dimension in split.items()},
        numbers["kernel_output_feature_dimension"], groups,
    )  # fmt: skip
    made = writer.add(op.name, data, kernel, shape=shape, dtype=op.result.dtype, **attributes)
    return [_interleaved(writer, made, op, {places[i]: d for i, d in split.items()}, groups)]


def _phases(
    writer: Writer,
    kernel: Value,
    split: Mapping[int, _Dimension],
    features: int,
    groups: int,
) -> Value:
    """The window of every phase: they are output features, within groups, before the features."""
    high = [0] * len(kernel.shape)
    for axis, dimension in split.items():
        high[axis] = dimension.window * dimension.phases - dimension.taps
    padded = [size + more for size, more in zip(kernel.shape, high, strict=True)]
    if any(high):
        kernel = _padded(writer, kernel, [0 for _ in high], high)
    apart: list[int] = []
    at: dict[int, int] = {}
    phases: list[int] = []
    for axis, size in enumerate(padded):
        at[axis] = len(apart)
        if axis in split:
            apart += [split[axis].window, split[axis].phases]
            phases.append(at[axis] + 1)
        elif axis == features:
            apart += [groups, size // groups]
        else:
            apart.append(size)
    kernel = writer.reshape(kernel, apart)
    kernel = writer.add("reverse", kernel, dimensions=tuple(phases))
    order: list[int] = []
    for axis in range(len(padded)):
        order += [at[axis], *phases, at[axis] + 1] if axis == features else [at[axis]]
    kernel = writer.add(
        "transpose", kernel, shape=[apart[axis] for axis in order], permutation=tuple(order)
    )
    count = math.prod(dimension.phases for dimension in split.values())
    merged = [
        split[axis].window if axis in split else size * (count if axis == features else 1)
        for axis, size in enumerate(padded)
    ]
    return writer.reshape(kernel, merged)


def _padded(writer: Writer, value: Value, low: Sequence[int], high: Sequence[int]) -> Value:
    """The value with zeros around it."""
    zero = writer.constant(0, Value(TensorSpec((), value.dtype)))
    shape = [size + a + b for size, a, b in zip(value.shape, low, high, strict=True)]
    return writer.add(
        "pad", value, zero, shape=shape, dtype=value.dtype, edge_padding_low=tuple(low),
        edge_padding_high=tuple(high), interior_padding=tuple(0 for _ in shape),
    )  # fmt: skip


def _interleaved(
    writer: Writer, made: Value, op: Op, split: Mapping[int, _Dimension], groups: int
) -> Value:
    """Phases side by side along their dimensions; what lies beyond the result is cut off."""
    features = op.attributes["dimension_numbers"]["output_feature_dimension"]
    phases = [dimension.phases for dimension in split.values()]
    apart: list[int] = []
    at: dict[int, int] = {}
    for axis, size in enumerate(made.shape):
        at[axis] = len(apart)
        if axis == features:
            apart += [groups, *phases, op.result.shape[features] // groups]
        else:
            apart.append(size)
    order: list[int] = []
    for axis in range(len(made.shape)):
        order.append(at[axis])
        if axis == features:
            order.append(at[axis] + 1 + len(phases))
        elif axis in split:
            order.append(at[features] + 1 + list(split).index(axis))
    value = writer.reshape(made, apart)
    value = writer.add(
        "transpose", value, shape=[apart[axis] for axis in order], permutation=tuple(order)
    )
    silent = [0 for _ in order]
    for axis, dimension in split.items():
        silent[order.index(at[features] + 1 + list(split).index(axis))] = (
            dimension.dilation - dimension.phases
        )
    if any(silent):
        value = _padded(writer, value, silent, [0 for _ in order])
    whole = [
        split[axis].count * split[axis].dilation if axis in split else size
        for axis, size in enumerate(op.result.shape)
    ]
    value = writer.reshape(value, whole)
    starts = [
        split[axis].start % split[axis].dilation if axis in split else 0
        for axis in range(len(whole))
    ]
    if whole == list(op.result.shape):
        return value
    limits = [start + size for start, size in zip(starts, op.result.shape, strict=True)]
    return writer.add(
        "slice", value, shape=op.result.shape, start_indices=tuple(starts),
        limit_indices=tuple(limits), strides=tuple(1 for _ in whole),
    )  # fmt: skip


REWRITES: Mapping[str, Rewrite] = {"convolution": convolution}
"""Operation -> what is done instead."""
