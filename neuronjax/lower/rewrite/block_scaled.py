"""Products of MX blocks: their elements and scales, in place of the numbers that those stand for.

JAX writes such a product (`jax.nn.scaled_matmul`, or by hand) as FP8 elements times scales of E8M0
that 32 neighbours share, reshaped, and multiplied in FP32. How the numbers are made is not compared
with a pattern: whatever is made of one element and one scale alone is computed here for all 65,536
pairs of codes, and has to be the element times the scale (OCP Microscaling Formats 1.0, 5.3, 5.4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import ml_dtypes
import numpy as np

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.operations import is_splat
from neuronjax.lower.rewriter import Rewrite, Writer
from neuronjax.machine.specs import MX_BLOCK, MX_WORD, QUADRANT

_ELEMENTS = ("float8_e4m3fn", "float8_e5m2")
_SCALE = np.dtype(ml_dtypes.float8_e8m0fnu)

Array = np.ndarray


class _Extent(Enum):
    """The shape of a value, seen from the operand [..., K] that is made of it."""

    WHOLE = auto()
    """[..., K]"""
    BLOCKS = auto()
    """[..., K / 32, 32]"""
    SCALES = auto()
    """[..., K / 32], or with a dimension of size 1 behind"""
    SCALAR = auto()


@dataclass(frozen=True)
class _Made:
    """A value as a function of codes of an element and of a scale, which it is made of."""

    extent: _Extent
    compute: Callable[[Array, Array], Array]
    elements: Value | None = None
    scales: Value | None = None


class _OtherwiseMade(Exception):
    """The value is made of something else."""


@dataclass(frozen=True)
class _Operand:
    """An operand [..., K] of a product."""

    shape: tuple[int, ...]

    def extent_of(self, shape: Sequence[int]) -> _Extent:
        *outer, depth = self.shape
        blocks = (*outer, depth // MX_BLOCK)
        shapes = {
            self.shape: _Extent.WHOLE, (*blocks, MX_BLOCK): _Extent.BLOCKS,
            blocks: _Extent.SCALES, (*blocks, 1): _Extent.SCALES, (): _Extent.SCALAR,
        }  # fmt: skip
        if tuple(shape) not in shapes:
            raise _OtherwiseMade
        return shapes[tuple(shape)]

    def made(self, value: Value, known: dict[Value, _Made]) -> _Made:
        """Returns how a value is made. Raises _OtherwiseMade."""
        if value not in known:
            known[value] = self._made(value, known)
        return known[value]

    def _made(self, value: Value, known: dict[Value, _Made]) -> _Made:
        op = value.producer
        if is_splat(value):
            assert op is not None
            number = op.attributes["value"].flat[0]
            return _Made(_Extent.SCALAR, lambda *_: number)
        extent = self.extent_of(value.shape)
        if value.dtype.name in _ELEMENTS and extent in (_Extent.WHOLE, _Extent.BLOCKS):
            elements = value.dtype
            return _Made(extent, lambda codes, _: codes.view(elements), elements=value)
        if value.dtype == _SCALE and extent is _Extent.SCALES:
            return _Made(extent, lambda _, codes: codes.view(_SCALE), scales=value)
        if op is None or op.name not in _COMPUTED or op.regions:
            raise _OtherwiseMade
        return self._combined(op, [self.made(operand, known) for operand in op.operands], extent)

    def _combined(self, op: Op, operands: list[_Made], extent: _Extent) -> _Made:
        allowed = {extent, _Extent.SCALAR}
        if op.name == "reshape":
            allowed |= {_Extent.WHOLE, _Extent.BLOCKS} if extent in _OF_ELEMENTS else {extent}
        elif op.name == "broadcast_in_dim":
            allowed.add(_Extent.SCALES)
            dims = tuple(op.attributes["broadcast_dimensions"])
            if dims != tuple(range(len(dims))):
                raise _OtherwiseMade
        if not {operand.extent for operand in operands} <= allowed:
            raise _OtherwiseMade
        compute = _COMPUTED[op.name](op)
        makers = [operand.compute for operand in operands]
        return _Made(
            extent,
            lambda e, s: compute(*(make(e, s) for make in makers)),
            _only(operand.elements for operand in operands),
            _only(operand.scales for operand in operands),
        )


_OF_ELEMENTS = (_Extent.WHOLE, _Extent.BLOCKS)


def _only(values: Any) -> Value | None:
    """The one value among them, if there is any. Raises _OtherwiseMade: there are several."""
    different = {value for value in values if value is not None}
    if len(different) > 1:
        raise _OtherwiseMade
    return next(iter(different), None)


def _same(op: Op) -> Callable[..., Array]:
    return lambda value: value


def _elementwise(function: Callable[..., Array]) -> Callable[[Op], Callable[..., Array]]:
    return lambda op: function


def _converted(op: Op) -> Callable[..., Array]:
    return lambda value: np.asarray(value).astype(op.result.dtype)


def _cast(op: Op) -> Callable[..., Array]:
    if op.operands[0].dtype.itemsize != op.result.dtype.itemsize:
        raise _OtherwiseMade
    return lambda value: np.asarray(value).view(op.result.dtype)


_COMPARISONS: Mapping[str, Callable[..., Array]] = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal,
    "GT": np.greater, "GE": np.greater_equal,
}  # fmt: skip

_COMPUTED: Mapping[str, Callable[[Op], Callable[..., Array]]] = {
    "reshape": _same,
    "broadcast_in_dim": _same,
    "convert": _converted,
    "bitcast_convert": _cast,
    "compare": lambda op: _COMPARISONS[op.attributes["comparison_direction"]],
    "select": _elementwise(np.where),
    "add": _elementwise(np.add),
    "subtract": _elementwise(np.subtract),
    "multiply": _elementwise(np.multiply),
    "maximum": _elementwise(np.maximum),
    "minimum": _elementwise(np.minimum),
    "shift_left": _elementwise(np.left_shift),
}
"""Operation -> the function of its operands in numpy."""


def find_blocks(value: Value) -> tuple[Value, Value] | None:
    """The elements and the scales that an operand [..., K] of a product stands for, if it stands
    for MX blocks along its last dimension."""
    if not value.shape or value.shape[-1] % MX_BLOCK:
        return None
    try:
        made = _Operand(value.shape).made(value, {})
    except _OtherwiseMade:
        return None
    if made.elements is None or made.scales is None or made.extent is not _Extent.WHOLE:
        return None
    return (made.elements, made.scales) if _is_scaled(made) else None


def _is_scaled(made: _Made) -> bool:
    """Whether each pair of codes gives the number that it stands for; in the place of subnormal
    numbers, of which BF16 has few and engines none, small ones will do."""
    assert made.elements is not None
    elements, codes = np.meshgrid(*[np.arange(256, dtype=np.uint8)] * 2)
    with np.errstate(all="ignore"):
        given = np.asarray(made.compute(elements, codes)).astype(np.float32)
        numbers = elements.view(made.elements.dtype).astype(np.float64)
        wanted = (numbers * codes.view(_SCALE).astype(np.float64)).astype(np.float32)
    if given.shape != wanted.shape:
        return False
    least = np.finfo(np.float32).smallest_normal
    is_small = np.abs(wanted) < least
    is_equal = (given == wanted) | (np.isnan(given) & np.isnan(wanted))
    return bool(np.where(is_small, np.abs(given) <= least, is_equal).all())


def dot_general(writer: Writer, op: Op) -> Sequence[Value] | None:
    """`block_scaled_product` of elements and scales, where the Tensor engine has MX.

    Its operands are both sides' elements [..., K], or packed words [..., K / 4], then their scales
    [..., K / 32].
    """
    has_packed = all(f"{name}_x{MX_WORD}" in writer.tensor.rates for name in _ELEMENTS)
    if not has_packed or op.result.dtype != np.float32 or not _are_matrices(op):
        return None
    sides = [find_blocks(operand) for operand in op.operands]
    if None in sides:
        return None
    elements, codes, types = [], [], []
    for operand, (values, scales) in zip(op.operands, filter(None, sides), strict=True):
        *outer, depth = operand.shape
        types.append(values.dtype.name)
        elements.append(_cast_back(values) or writer.reshape(values, operand.shape))
        codes.append(_cast_back(scales) or writer.reshape(scales, (*outer, depth // MX_BLOCK)))
    return [
        writer.add(
            "block_scaled_product", *elements, *codes, shape=op.result.shape, dtype=np.float32,
            dot_dimension_numbers=op.attributes["dot_dimension_numbers"],
            element_types=tuple(types),
        )
    ]  # fmt: skip


def _cast_back(value: Value) -> Value | None:
    """The value [..., n] whose bits a value is, of another type, such as packed words."""
    op = value.producer
    if op is not None and op.name == "reshape":
        op = op.operands[0].producer
    if op is None or op.name != "bitcast_convert":
        return None
    (source,) = op.operands
    is_outer = source.shape[:-1] == value.shape[: len(source.shape) - 1]
    return source if source.shape and is_outer else None


def _are_matrices(op: Op) -> bool:
    """Whether operands are [batch, rows, K] as MX takes them: whole quadrants of words, and rows in
    even number, as those of stationary operands have to be."""
    numbers = op.attributes["dot_dimension_numbers"]
    for side, operand in zip(("lhs", "rhs"), op.operands, strict=True):
        rank = len(operand.shape)
        contracted = list(numbers[f"{side}_contracting_dimensions"])
        batch = list(numbers[f"{side}_batching_dimensions"])
        if rank < 2 or contracted != [rank - 1] or batch != list(range(rank - 2)):
            return False
        rows, depth = operand.shape[-2:]
        if rows % 2 or depth % (QUADRANT * MX_WORD):
            return False
    return True


BLOCK_SCALED: Mapping[str, Rewrite] = {"dot_general": dot_general}
"""Operation -> what the engines multiply instead."""
