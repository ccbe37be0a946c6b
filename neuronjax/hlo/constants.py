"""Compile-time values of a program: integers computed from constants and iotas.

Values are exact, element by element, or ``None`` if unknown. This is enough for loop counters and
indices.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from neuronjax.hlo.calls import CallGraph, Path
from neuronjax.hlo.module import ELEMENT_TYPES
from neuronjax.jaxlib_api.mlir import OpOrView, ir

MAX_ELEMENTS = 1 << 20
"""Arrays with more elements count as unknown."""
_MAX_DEPTH = 200

Rule = Callable[[OpOrView, list[np.ndarray]], np.ndarray | None]


class Constants:
    """Evaluates values of a module, with a cache."""

    def __init__(self, graph: CallGraph) -> None:
        self._graph = graph
        self._known: dict[tuple[ir.Value, Path], np.ndarray | None] = {}

    def value(self, value: ir.Value, path: Path, depth: int = 0) -> np.ndarray | None:
        """The integers or booleans of a value along a call path, or ``None``."""
        value, path = self._graph.origin(value, path)
        key = (value, path)
        if key not in self._known:
            self._known[key] = None  # a value is not made of itself, whatever a loop may say
            self._known[key] = self._evaluate(value, path, depth)
        return self._known[key]

    def scalar(self, value: ir.Value, path: Path) -> int | None:
        """The number that all elements of a value are equal to, or ``None``."""
        array = self.value(value, path)
        if array is None or array.size == 0 or (array != array.flat[0]).any():
            return None
        return int(array.flat[0])

    def _evaluate(self, value: ir.Value, path: Path, depth: int) -> np.ndarray | None:
        if depth > _MAX_DEPTH or isinstance(value, ir.BlockArgument):
            return None
        op = value.owner
        rule = RULES.get(op.name)
        if rule is None or not _is_countable(value.type):
            return None
        operands = []
        for operand in op.operands:
            known = self.value(operand, path, depth + 1)
            if known is None:
                return None
            operands.append(known)
        with np.errstate(all="ignore"):
            return rule(op, operands)


def _is_countable(type_: ir.Type) -> bool:
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        return False
    dtype = ELEMENT_TYPES.get(str(type_.element_type))
    is_integer = dtype is not None and dtype.kind in "iub"
    return is_integer and int(np.prod(type_.shape, dtype=np.int64)) <= MAX_ELEMENTS


def _dtype(op: OpOrView) -> np.dtype:
    return ELEMENT_TYPES[str(op.results[0].type.element_type)]


def _shape(op: OpOrView) -> tuple[int, ...]:
    return tuple(op.results[0].type.shape)


def numbers(op: OpOrView, name: str) -> list[int]:
    """An attribute that is an array of integers; empty if the op has none of that name."""
    return list(ir.DenseI64ArrayAttr(op.attributes[name])) if name in op.attributes else []


def number(op: OpOrView, name: str) -> int:
    """An attribute that is an integer."""
    return ir.IntegerAttr(op.attributes[name]).value


def direction(op: OpOrView) -> str:
    """``EQ``, ``NE``, ``GE``, ``GT``, ``LE`` or ``LT`` of a comparison."""
    text = str(op.attributes["comparison_direction"])
    return text.rpartition(" ")[2].rstrip(">")


def _iota(op: OpOrView, _: list[np.ndarray]) -> np.ndarray:
    shape, dimension = _shape(op), number(op, "iota_dimension")
    along = [-1 if axis == dimension else 1 for axis in range(len(shape))]
    counted = np.arange(shape[dimension]).astype(_dtype(op)).reshape(along)
    return np.broadcast_to(counted, shape)


def _broadcast(op: OpOrView, operands: list[np.ndarray]) -> np.ndarray:
    shape, axes = _shape(op), numbers(op, "broadcast_dimensions")
    ordered = operands[0].transpose(np.argsort(axes))
    along = [1] * len(shape)
    for size, axis in zip(ordered.shape, sorted(axes), strict=True):
        along[axis] = size
    return np.broadcast_to(ordered.reshape(along), shape)


def _slice(op: OpOrView, operands: list[np.ndarray]) -> np.ndarray:
    names = ("start_indices", "limit_indices", "strides")
    bounds = zip(*(numbers(op, name) for name in names), strict=True)
    return operands[0][tuple(slice(*bound) for bound in bounds)]


def _divide(_: OpOrView, operands: list[np.ndarray]) -> np.ndarray | None:
    """Rounds towards zero; the result of a division by zero is unknown."""
    a, b = operands
    return None if (b == 0).any() else (a - np.fmod(a, b)) // b


def _remainder(_: OpOrView, operands: list[np.ndarray]) -> np.ndarray | None:
    a, b = operands
    return None if (b == 0).any() else np.fmod(a, b)


def _elementwise(function: Callable[..., np.ndarray | np.generic]) -> Rule:
    return lambda op, operands: np.asarray(function(*operands)).astype(_dtype(op))


_COMPARE: dict[str, np.ufunc] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "GE": np.greater_equal,
    "GT": np.greater,
    "LE": np.less_equal,
    "LT": np.less,
}

RULES: dict[str, Rule] = {
    "stablehlo.constant": lambda op, _: np.array(op.attributes["value"]),
    "stablehlo.iota": _iota,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.slice": _slice,
    "stablehlo.divide": _divide,
    "stablehlo.remainder": _remainder,
    "stablehlo.reshape": lambda op, operands: operands[0].reshape(_shape(op)),
    "stablehlo.transpose": lambda op, operands: operands[0].transpose(numbers(op, "permutation")),
    "stablehlo.reverse": lambda op, operands: np.flip(
        operands[0], tuple(numbers(op, "dimensions"))
    ),
    "stablehlo.concatenate": lambda op, operands: np.concatenate(
        operands, axis=number(op, "dimension")
    ),
    "stablehlo.convert": lambda op, operands: operands[0].astype(_dtype(op)),
    "stablehlo.compare": lambda op, operands: _COMPARE[direction(op)](*operands),
    "stablehlo.clamp": _elementwise(lambda low, x, high: np.minimum(np.maximum(x, low), high)),
    "stablehlo.select": _elementwise(np.where),
    "stablehlo.add": _elementwise(np.add),
    "stablehlo.subtract": _elementwise(np.subtract),
    "stablehlo.multiply": _elementwise(np.multiply),
    "stablehlo.maximum": _elementwise(np.maximum),
    "stablehlo.minimum": _elementwise(np.minimum),
    "stablehlo.negate": _elementwise(np.negative),
    "stablehlo.abs": _elementwise(np.abs),
    "stablehlo.and": _elementwise(np.bitwise_and),
    "stablehlo.or": _elementwise(np.bitwise_or),
    "stablehlo.xor": _elementwise(np.bitwise_xor),
    "stablehlo.not": _elementwise(np.bitwise_not),
}
"""Op -> numpy function. Booleans are numpy's, so that ``not`` is the logical one."""
