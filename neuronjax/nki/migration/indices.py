"""Index expressions of NKI 0.x as slices: `128 * i + nl.arange(128)[:, None]` is `128 * i : …`."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field


class UntranslatedError(Exception):
    """Why an expression was not translated."""


@dataclass(frozen=True)
class Axis:
    """A run of places along an axis of what indices walk over: `size` places `step` apart."""

    #: None: it is no literal number.
    step: int | None
    size: str


@dataclass(frozen=True)
class Affine:
    """An index: terms that are added to a base, and axes by their numbers."""

    terms: tuple[str, ...] = ()
    axes: Mapping[int, Axis] = field(default_factory=dict)
    rank: int = 0

    @property
    def base(self) -> str:
        """What is added to the places, as an expression."""
        text = " + ".join(self.terms) or "0"
        return text.replace("+ -", "- ")

    def plus(self, other: Affine, sign: int) -> Affine:
        """The sum, or the difference."""
        scaled = other.times(str(sign), sign) if sign < 0 else other
        if set(self.axes) & set(scaled.axes):
            raise UntranslatedError("an axis occurs twice in an index")
        terms = tuple(t for t in (*self.terms, *scaled.terms) if t not in ("0", "-0"))
        return Affine(terms, {**self.axes, **scaled.axes}, max(self.rank, scaled.rank))

    def times(self, text: str, number: int | None) -> Affine:
        """The product with an expression, which is a number if it is known."""
        terms = [_product(text, term) for term in self.terms]
        axes = {
            axis: dataclasses.replace(
                run, step=None if number is None or run.step is None else run.step * number
            )
            for axis, run in self.axes.items()
        }
        return Affine(tuple(terms), axes, self.rank)


def _product(left: str, right: str) -> str:
    if left == "-1":
        return f"-{right}" if _is_plain(right) else f"-({right})"
    if right.isdigit() and left.isdigit():
        return str(int(left) * int(right))
    return f"{left} * {right}" if _is_plain(right) else f"{left} * ({right})"


def _is_plain(text: str) -> bool:
    return isinstance(ast.parse(text, mode="eval").body, ast.Name | ast.Constant | ast.Call)


def affine(node: ast.expr, names: Mapping[str, ast.expr]) -> Affine:
    """An expression as an index; names stand for index expressions.

    UntranslatedError: it is none.
    """
    if isinstance(node, ast.Name) and node.id in names:
        return affine(names[node.id], names)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Subscript):
        grid = names.get(node.value.id) if isinstance(node.value, ast.Name) else node.value
        letters = ("p", "x", "y", "z", "w")
        if isinstance(grid, ast.Subscript) and _called(grid.value) == "mgrid":
            return _of_grid(grid, letters.index(node.attr))
    if isinstance(node, ast.Subscript):
        is_entry = isinstance(node.value, ast.Subscript) and isinstance(node.slice, ast.Constant)
        if is_entry and isinstance(node.value, ast.Subscript) and _is_grid(node.value):
            return _of_grid(node.value, int(ast.unparse(node.slice)))
        if isinstance(node.value, ast.Call) and _called(node.value.func) == "arange":
            return _of_arange(node.value, node.slice)
        if isinstance(node.value, ast.Name) and node.value.id in names:
            inner = names[node.value.id]
            if isinstance(inner, ast.Call) and _called(inner.func) == "arange":
                return _of_arange(inner, node.slice)
    if isinstance(node, ast.Call) and _called(node.func) == "arange":
        return _of_arange(node, ast.Slice())
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return affine(node.operand, names).times("-1", -1)
    if isinstance(node, ast.BinOp):
        return _of_operator(node, names)
    return Affine((ast.unparse(node),))


def _of_operator(node: ast.BinOp, names: Mapping[str, ast.expr]) -> Affine:
    if not isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
        return Affine((f"({ast.unparse(node)})",))
    left, right = affine(node.left, names), affine(node.right, names)
    if isinstance(node.op, ast.Mult):
        factor, index = (left, right) if not left.axes else (right, left)
        if not index.axes:
            return Affine((ast.unparse(node),))
        return index.times(factor.base, _number(factor.base))
    return left.plus(right, 1 if isinstance(node.op, ast.Add) else -1)


def _number(text: str) -> int | None:
    try:
        value = ast.literal_eval(text)
    except ValueError:
        return None
    return value if isinstance(value, int) else None


def _of_arange(call: ast.Call, places: ast.expr) -> Affine:
    given = [ast.unparse(argument) for argument in call.args]
    entries = places.elts if isinstance(places, ast.Tuple) else [places]
    axis = next(n for n, entry in enumerate(entries) if isinstance(entry, ast.Slice))
    if len(given) == 3:
        raise UntranslatedError("nl.arange with a step")
    start, size = ("0", given[0]) if len(given) == 1 else (given[0], f"{given[1]} - {given[0]}")
    terms = () if start == "0" else (start,)
    return Affine(terms, {axis: Axis(1, size)}, len(entries))


def _of_grid(grid: ast.Subscript, axis: int) -> Affine:
    entries = grid.slice.elts if isinstance(grid.slice, ast.Tuple) else [grid.slice]
    entry = entries[axis]
    assert isinstance(entry, ast.Slice)
    start = ast.unparse(entry.lower) if entry.lower else "0"
    stop = ast.unparse(entry.upper) if entry.upper else "0"
    size = stop if start == "0" else f"{stop} - ({start})"
    return Affine(() if start == "0" else (start,), {axis: Axis(1, size)}, len(entries))


def _is_grid(node: ast.Subscript) -> bool:
    return _called(node.value) == "mgrid"


def _called(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def limits(mask: ast.expr, names: Mapping[str, ast.expr]) -> dict[int, str]:
    """Axis -> how many of its places a mask leaves. UntranslatedError: it leaves no first ones."""
    if isinstance(mask, ast.Constant) and mask.value in (None, True):
        return {}
    if isinstance(mask, ast.Name) and mask.id in names:
        return limits(names[mask.id], names)
    if isinstance(mask, ast.BinOp) and isinstance(mask.op, ast.BitAnd):
        return {**limits(mask.left, names), **limits(mask.right, names)}
    if not isinstance(mask, ast.Compare) or len(mask.ops) != 1:
        raise UntranslatedError(f"the mask {ast.unparse(mask)}")
    left, right = affine(mask.left, names), affine(mask.comparators[0], names)
    operator = mask.ops[0]
    if isinstance(operator, ast.Lt | ast.LtE):
        left, right = right, left
    elif not isinstance(operator, ast.Gt | ast.GtE):
        raise UntranslatedError(f"the mask {ast.unparse(mask)}")
    room = left.plus(right, -1)  # is at least 0, or more
    if len(room.axes) != 1:
        raise UntranslatedError(f"the mask {ast.unparse(mask)} of several axes")
    ((axis, run),) = room.axes.items()
    if run.step != -1:
        raise UntranslatedError(f"the mask {ast.unparse(mask)}, which leaves last places")
    is_strict = isinstance(operator, ast.Lt | ast.Gt)
    return {axis: room.base if is_strict else f"{room.base} + 1"}
