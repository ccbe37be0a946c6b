"""Functions of `nki.language` that compute element by element, such as `nl.add` and `nl.exp`.

Many are operators of instructions as well; they are `Function`s, which can be called and passed.
Operands of one rank are broadcast along free dimensions of size 1. The result lies in SBUF; its
dtype is that of the first tile unless `dtype` is given.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from neuronjax.errors import UnsupportedProgramError
from neuronjax.nki import isa
from neuronjax.nki.constants import OPERATORS, Operator
from neuronjax.nki.dtypes import DType
from neuronjax.nki.known_failures import watched
from neuronjax.nki.refusal import checked
from neuronjax.nki.tensor import Tensor
from neuronjax.nki.tiles import copy, full, ndarray
from neuronjax.nki.tracing import current
from neuronjax.program.operators import UNARY, Activation, AluOp

Operand = Tensor | float


@dataclass(frozen=True, repr=False)
class Function(Operator):
    """An operator of instructions that is a function of tiles as well."""

    compute: Callable[..., Tensor] = field(compare=False)

    def __call__(self, *operands: object, **options: object) -> Tensor:
        name = f"nki.language.{self.name}"
        return checked(name)(watched(name, self.compute))(*operands, **options)

    def __repr__(self) -> str:
        return f"nl.{self.name}"


def broadcast_to(x: Tensor, shape: tuple[int, ...], dtype: DType = None) -> Tensor:
    """A view of `x` with free dimensions of size 1 repeated up to `shape`, of the same rank; one
    partition of a tile is copied to others."""
    if x.ndim != len(shape):
        raise UnsupportedProgramError(
            f"{current().line()}: cannot broadcast {x.shape} to {tuple(shape)}; give both the "
            "same number of dimensions."
        )
    if x.storage.on_chip and x.shape[0] == 1 < shape[0]:
        x = (current().spread or _on_partitions)(x, shape[0])
    for dim, size in enumerate(shape):
        if x.shape[dim] != size:
            x = x.broadcast(dim, size)
    return x if dtype is None else copy(x, dtype)


_QUARTER = 32
"""Partitions that one shuffle reaches."""


def _on_partitions(x: Tensor, count: int) -> Tensor:
    """A tile with the one partition of `x` on all of its own: a shuffle within the first quarter,
    and copies to the others."""
    result = ndarray((count, *x.shape[1:]), x.dtype)
    first = ndarray((_QUARTER, *x.shape[1:]), x.dtype)
    isa.nc_stream_shuffle(first, x, [0] * _QUARTER)
    for start in range(0, count, _QUARTER):
        size = min(_QUARTER, count - start)
        isa.tensor_copy(result[start : start + size], first[:size])
    return result


def broadcast_operands(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both, broadcast to their common shape."""
    sizes = zip(x.shape, y.shape, strict=False)
    shape = tuple(max(pair) for pair in sizes) if x.ndim == y.ndim else x.shape
    return broadcast_to(x, shape), broadcast_to(y, shape)


def binary(name: str, x: Operand, y: Operand, dtype: DType = None) -> Tensor:
    """x op y of tiles, or of a tile and a number."""
    operator = OPERATORS[name]
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        x, y = broadcast_operands(x, y)
        result = ndarray(x.shape, dtype or x.dtype)
        isa.tensor_tensor(result, x, y, operator)
        return result
    tile, number = (x, y) if isinstance(x, Tensor) else (y, x)
    if not isinstance(tile, Tensor):
        raise UnsupportedProgramError(
            f"{current().line()}: nl.{name}({x}, {y}) takes at least one tensor; use Python's "
            "operators for numbers."
        )
    result = ndarray(tile.shape, dtype or tile.dtype)
    isa.tensor_scalar(result, tile, operator, number, reverse0=tile is y)
    return result


def unary(name: str, x: Tensor, dtype: DType = None) -> Tensor:
    """A function of Scalar's tables."""
    result = ndarray(x.shape, dtype or x.dtype)
    isa.activation(result, OPERATORS[name], x)
    return result


def _reciprocal(x: Tensor, dtype: DType = None) -> Tensor:
    result = ndarray(x.shape, dtype or x.dtype)
    isa.reciprocal(result, x)
    return result


def _invert(x: Tensor, dtype: DType = None) -> Tensor:
    result = ndarray(x.shape, dtype or x.dtype)
    isa.tensor_scalar(result, x, OPERATORS["invert"], None)
    return result


def divide(x: Operand, y: Operand, dtype: DType = None) -> Tensor:
    """x / y by way of the reciprocal in float32: an error of 2 units in the last place at most."""
    if not isinstance(y, Tensor):
        return binary("multiply", x, 1 / y, dtype)
    default = x.dtype if isinstance(x, Tensor) else y.dtype
    return binary("multiply", x, _reciprocal(y, "float32"), dtype or default)


def negative(x: Tensor, dtype: DType = None) -> Tensor:
    """-x."""
    return binary("multiply", x, -1.0, dtype)


def logical_not(x: Tensor, dtype: DType = None) -> Tensor:
    """1 where x is 0, and 0 where it is not."""
    return binary("logical_xor", x, 1.0, dtype)


def cos(x: Tensor, dtype: DType = None) -> Tensor:
    """sin(x + π/2)."""
    return unary("sin", binary("add", x, math.pi / 2, "float32"), dtype or x.dtype)


def tan(x: Tensor, dtype: DType = None) -> Tensor:
    """sin(x) / cos(x)."""
    return divide(unary("sin", x, "float32"), cos(x, "float32"), dtype or x.dtype)


def floor(x: Tensor, dtype: DType = None) -> Tensor:
    """The greatest integer that is not greater than x."""
    return _integral(x, dtype, "subtract", "greater")


def ceil(x: Tensor, dtype: DType = None) -> Tensor:
    """The least integer that is not less than x."""
    return _integral(x, dtype, "add", "less")


def trunc(x: Tensor, dtype: DType = None) -> Tensor:
    """The integer next to x on the side of zero."""
    magnitude = floor(unary("abs", x, "float32"))
    return binary("multiply", magnitude, unary("sign", x, "float32"), dtype or x.dtype)


_INTEGRAL = 2.0**23
"""float32 numbers from here on are integers (IEEE 754)."""


def _integral(x: Tensor, dtype: DType, correct: str, is_beyond: str) -> Tensor:
    """x by way of int32, corrected by 1 where the conversion went beyond."""
    nearest = copy(copy(x, "int32"), "float32")
    rounded = binary(correct, nearest, binary(is_beyond, nearest, x))
    is_small = binary("less", unary("abs", x, "float32"), _INTEGRAL, "uint8")
    result = copy(x, "float32")
    isa.tensor_copy_predicated(result, rounded, is_small)
    return copy(result, dtype or x.dtype)


def where(condition: Tensor, x: Operand, y: Operand, dtype: DType = None) -> Tensor:
    """x where the condition is not 0, else y: tiles or numbers."""
    default = next((v.dtype for v in (x, y) if isinstance(v, Tensor)), "float32")
    kind = dtype or default
    shape = condition.shape
    result = copy(broadcast_to(y, shape), kind) if isinstance(y, Tensor) else full(shape, y, kind)
    chosen = copy(broadcast_to(x, shape), kind) if isinstance(x, Tensor) else x
    isa.tensor_copy_predicated(result, chosen, binary("not_equal", condition, 0.0, "uint8"))
    return result


def dropout(x: Tensor, rate: Operand, dtype: DType = None) -> Tensor:
    """x, with elements replaced by zero with the probability `rate`."""
    result = ndarray(x.shape, x.dtype)
    isa.dropout(result, x, rate)
    return result if dtype is None else copy(result, dtype)


BINARY = {op.value for op in AluOp} - {op.value for op in UNARY}
_UNARY = {function.value for function in Activation} - {"copy", "prelu", "reciprocal"}
_OTHERS: Mapping[str, Callable[..., Tensor]] = {"reciprocal": _reciprocal, "invert": _invert}

FUNCTIONS: Mapping[str, Callable[..., Tensor]] = {
    **{name: Function(name, functools.partial(binary, name)) for name in sorted(BINARY)},
    **{name: Function(name, functools.partial(unary, name)) for name in sorted(_UNARY)},
    **{name: Function(name, compute) for name, compute in _OTHERS.items()},
    "copy": Function("copy", copy),
    **{
        function.__name__: function
        for function in (
            divide, negative, logical_not, cos, tan, floor, ceil, trunc, where, dropout,
            broadcast_to,
        )
    },
}  # fmt: skip
"""Name in `nki.language` -> the function."""
