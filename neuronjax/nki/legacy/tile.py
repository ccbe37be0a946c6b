"""Tensors of NKI 0.x: indices by expressions, arithmetic operators, values by assignment."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from neuronjax.nki import elementwise, isa, tiles
from neuronjax.nki.constants import OPERATORS
from neuronjax.nki.dtypes import DType
from neuronjax.nki.legacy.index import Predicate
from neuronjax.nki.legacy.operands import Masked, Operand, apply_masked
from neuronjax.nki.legacy.walks import Walk
from neuronjax.nki.legacy.writing import add_to, assign
from neuronjax.nki.tensor import Tensor


def _operator(name: str, swapped: bool = False) -> Callable[[Tile, Operand], Masked]:
    def compute(self: Tile, other: Operand) -> Masked:
        return arithmetic(name, other, self) if swapped else arithmetic(name, self, other)

    return compute


def _equality(name: str) -> Any:
    """Tiles and numbers are compared element by element; anything else, such as None, is not."""

    def compute(self: Tile, other: Any) -> Masked:
        is_compared = isinstance(other, Tensor | int | float | np.number)
        return arithmetic(name, self, other) if is_compared else NotImplemented

    return compute


def arithmetic(
    name: str, x: Operand, y: Operand, dtype: DType = None, mask: Predicate = None
) -> Masked:
    """x op y of tiles of NKI 0.x and numbers, broadcast as numpy does."""
    return apply_masked(functools.partial(_arithmetic, name), x, y, mask=mask, dtype=dtype)


def _arithmetic(name: str, x: Tensor | float, y: Tensor | float, dtype: DType = None) -> Tensor:
    """The `arithmetic` of plain tensors: with a column, which is a scalar of each partition, by an
    instruction of a tile and a scalar."""
    if name == "divide":
        return elementwise.divide(x, y, dtype)
    if (
        isinstance(x, Tensor)
        and isinstance(y, Tensor)
        and x.ndim == y.ndim
        and x.shape[0] == y.shape[0]
    ):
        for column, other in ((y, x), (x, y)):
            if (
                column.size == column.shape[0]
                and other.size > column.size
                and column.dtype.name == "float32"
            ):
                result = tiles.ndarray(other.shape, dtype or x.dtype)
                isa.tensor_scalar(result, other, OPERATORS[name], column, reverse0=column is x)
                return result
    return elementwise.binary(name, x, y, dtype)


@dataclass(frozen=True, repr=False, eq=False)
class Tile(Walk):
    """A tensor of a kernel of NKI 0.x, or what an instruction returns: arithmetic operators make
    tiles, and parts take values by assignment."""

    def __setitem__(self, index: object, value: object) -> None:
        target = self[index]
        assign(target, value)

    def broadcast_to(self, shape: Sequence[int]) -> Masked:
        """It, with dimensions of size 1 repeated."""
        return apply_masked(elementwise.broadcast_to, self, tuple(shape))

    def astype(self, dtype: DType) -> Masked:
        """A copy with elements of another type."""
        return apply_masked(tiles.copy, self, dtype)

    __add__, __radd__ = _operator("add"), _operator("add", True)
    __sub__, __rsub__ = _operator("subtract"), _operator("subtract", True)
    __mul__, __rmul__ = _operator("multiply"), _operator("multiply", True)
    __truediv__, __rtruediv__ = _operator("divide"), _operator("divide", True)
    __pow__, __rpow__ = _operator("power"), _operator("power", True)
    __and__, __or__, __xor__ = map(_operator, ("bitwise_and", "bitwise_or", "bitwise_xor"))
    __lt__, __le__ = _operator("less"), _operator("less_equal")
    __gt__, __ge__ = _operator("greater"), _operator("greater_equal")
    __eq__, __ne__ = _equality("equal"), _equality("not_equal")
    __hash__ = Tensor.__hash__
    #: Numbers of numpy leave operators to it.
    __array_ufunc__ = None  # type: ignore[assignment]

    def __neg__(self) -> Masked:
        return arithmetic("multiply", self, -1.0)

    def __iadd__(self, other: object) -> Self:
        add_to(self, other)
        return self
