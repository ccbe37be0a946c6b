"""Operands of instructions of NKI 0.x, as functions of the present dialect take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, overload

import numpy as np

from neuronjax.errors import UnsupportedProgramError
from neuronjax.nki.constants import OPERATORS, Operator
from neuronjax.nki.legacy.index import Predicate, as_mask
from neuronjax.nki.legacy.lives import lives
from neuronjax.nki.legacy.walks import Walk, plain_view
from neuronjax.nki.tensor import Tensor
from neuronjax.nki.tracing import current


class Nothing:
    """What an instruction returns of which a mask leaves nothing."""

    def __iadd__(self, other: object) -> Nothing:
        return self


NOTHING = Nothing()

Masked: TypeAlias = Walk | Nothing
"""A tile, or what a mask has left nothing of."""
Operand: TypeAlias = Masked | float | np.number
"""What instructions compute with: tiles and numbers."""


def plain(operand: object) -> Any:
    """An operand as functions of the present dialect take it, to be read.

    OutOfBoundsError: its indices lead out of the tensor.
    """
    if not isinstance(operand, Walk):
        if isinstance(operand, Tensor):
            raise UnsupportedProgramError(
                f"{current().line()}: a tensor of the present nki is passed to a function of "
                "neuronxcc.nki. A kernel is written in one of the dialects."
            )
        return operator_of(operand)
    operand.check_inside()
    view = plain_view(operand)
    lives().sums.read(view)
    return view


def operator_of(value: object) -> Any:
    """The operator that a function of numpy stands for; anything else as it is."""
    if value is None or isinstance(value, Operator | Tensor):
        return value
    if isinstance(value, np.ufunc) or getattr(value, "__module__", None) == "numpy":
        name = getattr(value, "__name__", "")
        name = _NUMPY_NAMES.get(name, name)
        if name in OPERATORS:
            return OPERATORS[name]
    return value


_NUMPY_NAMES = {
    "max": "maximum", "amax": "maximum", "min": "minimum", "amin": "minimum", "sum": "add",
    "prod": "multiply", "absolute": "abs", "true_divide": "divide", "bitwise_not": "invert",
    "invert": "invert", "mean": "average",
}  # fmt: skip
"""Function of numpy -> the operator that it is, where names differ."""


@overload
def apply_masked(
    function: Callable[..., Tensor],
    *arguments: object,
    mask: Predicate = None,
    **keywords: object,
) -> Masked: ...
@overload
def apply_masked(
    function: Callable[..., None],
    *arguments: object,
    mask: Predicate = None,
    **keywords: object,
) -> Nothing | None: ...
def apply_masked(
    function: Callable[..., Tensor | None],
    *arguments: object,
    mask: Predicate = None,
    **keywords: object,
) -> Masked | None:
    """What a function of the present dialect makes of tiles where a mask holds.

    UnsupportedProgramError: the mask is none.
    """
    lives().arrive()
    operands = [value for value in (*arguments, *keywords.values()) if isinstance(value, Walk)]
    if any(isinstance(value, Nothing) for value in (*arguments, *keywords.values())):
        return NOTHING
    mask = as_mask(mask)
    if not mask.conditions and not any(operand.region for operand in operands):
        given = [plain(value) for value in arguments]
        return as_tile(
            operands, function(*given, **{key: plain(value) for key, value in keywords.items()})
        )
    rank = max(operand.ndim for operand in operands)
    full = [
        max(operand.whole_shape[dim] for operand in operands if dim < operand.ndim)
        for dim in range(rank)
    ]
    ranges = _common_ranges(operands, mask.ranges(full), full)
    if any(low >= high for low, high in ranges):
        return NOTHING

    def narrow(value: object) -> Any:
        return plain(within(value, ranges, full) if isinstance(value, Walk) else value)

    result = function(
        *map(narrow, arguments), **{key: narrow(value) for key, value in keywords.items()}
    )
    return as_tile(operands, result, ranges, full)


def _common_ranges(
    operands: Sequence[Walk], ranges: list[tuple[int, int]], full: Sequence[int]
) -> list[tuple[int, int]]:
    for operand in operands:
        for dim, (start, size) in enumerate(operand.region):
            if size == full[dim]:
                low, high = ranges[dim]
                ranges[dim] = (max(low, start), min(high, start + operand.shape[dim]))
    return ranges


def within(operand: Walk, ranges: Sequence[tuple[int, int]], full: Sequence[int]) -> Walk:
    """The part of an operand that ranges of the whole leave."""
    own = []
    for dim, size in enumerate(operand.shape):
        start, whole = operand.region[dim] if operand.region else (0, size)
        is_same = whole == full[dim]
        own.append((ranges[dim][0] - start, ranges[dim][1] - start) if is_same else (0, size))
    return operand.narrowed(own)


def as_tile(
    operands: Sequence[Walk],
    result: Tensor | None,
    ranges: Sequence[tuple[int, int]] = (),
    full: Sequence[int] = (),
) -> Walk | None:
    """A result as a tile of NKI 0.x, of which ranges are there."""
    if not isinstance(result, Tensor):
        return result
    if result.ndim == 1:
        result = result.expand_dim(1)
    region = []
    for dim, size in enumerate(result.shape):
        is_range = dim < len(ranges) and size == ranges[dim][1] - ranges[dim][0]
        region.append((ranges[dim][0], full[dim]) if is_range else (0, size))
    is_whole = all(
        low == 0 and whole == size for (low, whole), size in zip(region, result.shape, strict=True)
    )
    return type(operands[0]).of(result, () if is_whole else tuple(region))


def reduce_any(
    function: Callable[..., Tensor], x: Tensor, axis: int | Sequence[int], **options: Any
) -> Tensor:
    """What a function that reduces the last dimensions makes of a tile of which any are reduced."""
    given = {int(a) % x.ndim for a in (axis if isinstance(axis, list | tuple) else (axis,))}
    if 0 in given or given == {*range(min(given), x.ndim)}:
        return function(x, axis, **options)
    kept = [dim for dim in range(x.ndim) if dim not in given]
    order = [*kept, *sorted(given)]
    shape, strides = ([part[dim] for dim in order] for part in (x.shape, x.strides))
    turned = x._with(shape=tuple(shape), strides=tuple(strides))
    keepdims = options.pop("keepdims", False)
    result = function(turned, tuple(range(len(kept), x.ndim)), **options)
    whole = tuple(1 if dim in given else size for dim, size in enumerate(x.shape))
    return result.reshape(whole) if keepdims else result
