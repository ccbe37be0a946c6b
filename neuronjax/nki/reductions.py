"""Functions of `nki.language` over rows of tiles: reductions, normalisations, products.

Reductions take the last dimensions, never the partition, and add up in float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence

from neuronjax.nki import isa
from neuronjax.nki.arguments import last_axes
from neuronjax.nki.constants import OPERATORS, MemoryRegion
from neuronjax.nki.dtypes import DType
from neuronjax.nki.elementwise import binary, divide, unary
from neuronjax.nki.tensor import Tensor
from neuronjax.nki.tiles import converted, copy, ndarray
from neuronjax.nki.tracing import current

Axis = int | Sequence[int]


def _reduced(
    name: str, x: Tensor, axis: Axis, dtype: DType = None, keepdims: bool = False
) -> Tensor:
    axes = last_axes(current(), axis, x.ndim)
    shape = (*x.shape[: x.ndim - axes], *([1] * axes if keepdims else []))
    result = ndarray(shape, dtype or x.dtype)
    isa.tensor_reduce(result, OPERATORS[name], x, axis)
    return result


def mean(x: Tensor, axis: Axis, dtype: DType = None, keepdims: bool = False) -> Tensor:
    """The arithmetic mean."""
    total = _reduced("add", x, axis, "float32", keepdims)
    return binary("multiply", total, 1 / _count(x, axis), dtype or x.dtype)


def var(x: Tensor, axis: Axis, dtype: DType = None, keepdims: bool = False) -> Tensor:
    """The variance about the mean, of all elements; dimensions are kept."""
    centred = binary("subtract", x, mean(x, axis, "float32", keepdims=True), "float32")
    return mean(unary("square", centred), axis, dtype or x.dtype, keepdims=True)


def is_every(x: Tensor, axis: Axis, dtype: DType = None) -> Tensor:
    """1 where no element is 0, else 0."""
    return _reduced("minimum", binary("not_equal", x, 0.0), axis, dtype or x.dtype)


def softmax(x: Tensor, axis: Axis = -1, dtype: DType = None) -> Tensor:
    """exp(x) / Σ exp(x), computed from the differences to the greatest element."""
    greatest = _reduced("maximum", x, axis, "float32", keepdims=True)
    weights = unary("exp", binary("subtract", x, greatest, "float32"))
    return divide(weights, _reduced("add", weights, axis, keepdims=True), dtype or x.dtype)


def rms_norm(
    x: Tensor,
    w: Tensor,
    axis: Axis,
    n: int,
    epsilon: float = 1e-06,
    dtype: DType = None,
    compute_dtype: DType = None,
) -> Tensor:
    """x / √(Σ x² / n + epsilon) · w."""
    kind = compute_dtype or "float32"
    squares = _reduced("add", unary("square", x, "float32"), axis, keepdims=True)
    scale = unary("rsqrt", binary("add", binary("multiply", squares, 1 / n), epsilon))
    return binary("multiply", binary("multiply", x, scale, kind), w, dtype or x.dtype)


def transpose(x: Tensor, dtype: DType = None) -> Tensor:
    """The transpose of a tile [rows, columns], in PSUM."""
    result = ndarray(x.shape[::-1], x.dtype, MemoryRegion.psum)
    isa.nc_transpose(result, x)
    return converted(result, dtype)


def matmul(x: Tensor, y: Tensor, transpose_x: bool = False) -> Tensor:
    """x · y, or xᵀ · y, of tiles in SBUF; float32 in PSUM."""
    stationary = x if transpose_x else copy(transpose(x))
    shape = (stationary.shape[1], y.shape[1])
    result = ndarray(shape, "float32", MemoryRegion.psum)
    isa.nc_matmul(result, stationary, y)
    return result


def gather_flattened(data: Tensor, indices: Tensor, axis: int = 0, dtype: DType = None) -> Tensor:
    """The elements at `indices`, uint32, of every partition, within that partition."""
    result = ndarray(indices.shape, data.dtype)
    isa.nc_n_gather(result, data, indices)
    return converted(result, dtype)


def expand_dims(x: Tensor, axis: int) -> Tensor:
    """A view of `x` with a new dimension of size 1 before dimension `axis`."""
    return x.expand_dim(axis % (x.ndim + 1))


def _count(x: Tensor, axis: Axis) -> int:
    """Elements that are reduced to one."""
    kept = x.ndim - last_axes(current(), axis, x.ndim)
    return math.prod(x.shape[kept:])


_OPERATORS = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "multiply"}

FUNCTIONS: Mapping[str, Callable[..., Tensor]] = {
    **{name: functools.partial(_reduced, operator) for name, operator in _OPERATORS.items()},
    "all": is_every,
    **{
        function.__name__: function
        for function in (
            mean, var, softmax, rms_norm, transpose, matmul, gather_flattened, expand_dims,
        )
    },
}  # fmt: skip
"""Name in `nki.language` -> the function."""
