"""Operations of a chain that need no instruction of their own. All of them are exact.

Engines compute in float32 and cast when they read and write: a conversion from or to a narrower
type is part of the instruction before or after it, and so is one of truth values to numbers, as a
comparison writes 0 and 1. The Scalar engine subtracts, takes the
exponential and adds up in one go; so it does with squares.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from neuronjax.lower.chain.elementwise import FUNCTIONS, writes_truth
from neuronjax.lower.chain.tile_program import Node, Reference, TileProgram
from neuronjax.lower.values.storage import NARROW_FLOATS
from neuronjax.program.operand import Immediate

_VECTOR = frozenset({"add", "subtract", "multiply", "divide", "maximum", "minimum"})
_SCALAR = frozenset(FUNCTIONS)
_READERS = _VECTOR | _SCALAR | {"reduce_add", "reduce_maximum", "reduce_minimum"}


@dataclass(frozen=True)
class Shortcuts:
    """What falls together in a chain, by numbers of nodes."""

    #: Conversion to float32 -> what others read instead.
    widened: Mapping[int, Reference]
    #: Operation -> the conversion that its result is written as.
    narrowed: Mapping[int, int]
    #: Exponential -> the difference that it takes.
    differences: Mapping[int, int]
    #: Exponential -> the sum of it.
    sums: Mapping[int, int]
    #: Sum -> the product of a value with itself that it adds up.
    squares: Mapping[int, int]
    #: Exponential with a sum -> the conversion that its results are written as beside it.
    beside: Mapping[int, int]
    #: Operation -> the one with a scalar whose result it alone reads, in one instruction with it.
    before: Mapping[int, int]
    #: Selection -> the maximum of it.
    maxima: Mapping[int, int]

    @property
    def absorbed(self) -> frozenset[int]:
        """Nodes that are written only if another one asks for them."""
        return frozenset(
            (
                *self.differences.values(), *self.narrowed.values(), *self.squares.values(),
                *self.beside.values(), *self.before.values(),
            )
        )  # fmt: skip


def shortcuts(program: TileProgram, wanted: frozenset[Reference]) -> Shortcuts:
    """The shortcuts of a chain; `wanted` values must be there as they are."""
    users: defaultdict[Reference, list[int]] = defaultdict(list)
    for number, node in enumerate(program.nodes):
        for operand in node.operands:
            if isinstance(operand, Reference):
                users[operand].append(number)
    stored = {output.value for output in program.outputs} | wanted
    widened: dict[int, Reference] = {}
    narrowed: dict[int, int] = {}
    differences: dict[int, int] = {}
    sums: dict[int, int] = {}
    for number, node in enumerate(program.nodes):
        readers = [program.nodes[user] for user in users[Reference(number)]]
        if Reference(number) in stored:
            continue
        source = _widened(program, node)
        if source is not None and all(reader.name in _READERS for reader in readers):
            widened[number] = source
        elif len(readers) == 1 and _is_written_as_read(node, readers[0]):
            narrowed[number] = users[Reference(number)][0]
    for number, node in enumerate(program.nodes):
        difference = _difference(program, node)
        if difference is None or users[difference] != [number] or difference in stored:
            continue
        differences[number] = difference.number
        shortcuts = [user for user in users[Reference(number)] if _adds(program.nodes[user])]
        if shortcuts:
            sums[number] = shortcuts[0]
    squares = {
        number: square.number
        for number, node in enumerate(program.nodes)
        if (square := _square(program, node)) is not None
        and users[square] == [number]
        and square not in stored
    }
    beside = {
        number: convert
        for number, total in sums.items()
        for convert in users[Reference(number)]
        if sorted(users[Reference(number)]) == sorted((total, convert))
        and Reference(number) not in stored
        and _is_written_as_read(program.nodes[number], program.nodes[convert])
    }
    taken = {*differences.values(), *widened, *narrowed, *squares.values()}
    before: dict[int, int] = {}
    for number, node in enumerate(program.nodes):
        if number in differences or node.name not in _VECTOR | _SCALAR:
            continue
        for operand in node.operands:
            if (
                isinstance(operand, Reference)
                and not operand.is_input
                and operand.number not in taken
                and operand not in stored
                and users[operand] == [number]
                and program.nodes[operand.number].axes == node.axes
                and _has_scalar(program, program.nodes[operand.number])
            ):
                before[number] = operand.number
                break
    maxima = {
        operand.number: number
        for number, node in enumerate(program.nodes)
        if node.name == "reduce_maximum" and _is_from(node, -math.inf)
        for operand in node.operands[:1]
        if isinstance(operand, Reference) and not operand.is_input
        if program.nodes[operand.number].name == "select" and node.dtype.name == "float32"
    }
    return Shortcuts(widened, narrowed, differences, sums, squares, beside, before, maxima)


def _is_from(node: Node, number: float) -> bool:
    init = node.operands[-1]
    return isinstance(init, Immediate) and float(init.value) == number


def _has_scalar(program: TileProgram, node: Node) -> bool:
    """Whether an operation in float32 has an operand that is a constant or varies less."""
    if node.reduced or {node.dtype.name, node.operand_dtype.name} != {"float32"}:
        return False
    varied = [
        program.axes_of(operand) for operand in node.operands if isinstance(operand, Reference)
    ]
    if node.name == "negate":
        return bool(varied)
    return node.name in _VECTOR and (len(varied) == 1 or any(axes < node.axes for axes in varied))


def _widened(program: TileProgram, node: Node) -> Reference | None:
    """What a conversion to float32 converts, if it varies along the same dimensions."""
    if node.name != "convert" or node.dtype.name != "float32":
        return None
    (operand,) = node.operands
    if node.operand_dtype.name not in NARROW_FLOATS or not isinstance(operand, Reference):
        return None
    return operand if program.axes_of(operand) == node.axes else None


def _is_written_as_read(node: Node, reader: Node) -> bool:
    """Whether an operation can write what its only reader converts it to."""
    if reader.name != "convert" or reader.axes != node.axes:
        return False
    if node.name == "compare":
        tensors = sum(isinstance(operand, Reference) for operand in node.operands)
        is_cast = reader.dtype.name in NARROW_FLOATS | {"float32"}
        return is_cast and writes_truth(dict(node.attributes), node.operand_dtype, tensors)
    is_float32 = node.name in _VECTOR | _SCALAR and node.dtype.name == "float32"
    return is_float32 and reader.dtype.name in NARROW_FLOATS


def _difference(program: TileProgram, node: Node) -> Reference | None:
    """The difference of two values that an exponential in float32 takes."""
    if node.name != "exponential" or node.dtype.name != "float32":
        return None
    (operand,) = node.operands
    if not isinstance(operand, Reference) or operand.is_input:
        return None
    inner = program.nodes[operand.number]
    plain = all(isinstance(operand, Reference) for operand in inner.operands)
    return operand if inner.name == "subtract" and plain else None


def _square(program: TileProgram, node: Node) -> Reference | None:
    """The product of a value with itself that a sum in float32 adds up."""
    operand = node.operands[0]
    if not _adds(node) or not isinstance(operand, Reference) or operand.is_input:
        return None
    inner = program.nodes[operand.number]
    same = len(inner.operands) == 2 and inner.operands[0] == inner.operands[1]
    is_square = inner.name == "multiply" and same and isinstance(inner.operands[0], Reference)
    return operand if is_square and inner.dtype.name == node.dtype.name == "float32" else None


def _adds(node: Node) -> bool:
    return node.name == "reduce_add" and _is_from(node, 0.0)
