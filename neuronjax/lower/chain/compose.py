"""Two or three operations of a chain as one instruction. Roundings are those of separate ones.

`tensor_scalar` does two operations with scalars, `scalar_tensor_tensor` one with a scalar and one
with a tensor, and the Scalar engine multiplies and adds before a function. All of them compute in
float32 and round each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

from neuronjax.formats import FLOAT32
from neuronjax.lower.chain.elementwise import FUNCTIONS, inverse_of
from neuronjax.lower.chain.tile_program import Node, Reference, TileProgram
from neuronjax.machine.specs import CoreSpec
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Dim, Immediate, Memory, Scalar
from neuronjax.program.operators import AluOp
from neuronjax.program.scalar_engine import ONE_SCALAR, Activate
from neuronjax.program.vector_engine import ScalarTensorTensor, TensorScalar

_OPERATORS: Mapping[str, AluOp] = {
    "add": AluOp.ADD, "subtract": AluOp.SUBTRACT, "multiply": AluOp.MULTIPLY,
    "maximum": AluOp.MAXIMUM, "minimum": AluOp.MINIMUM, "divide": AluOp.MULTIPLY,
    "negate": AluOp.MULTIPLY,
}  # fmt: skip


class Tiles(Protocol):
    """The tiles of a box, as far as operations are put together from them."""

    known: dict[Reference, Access]

    @property
    def program(self) -> TileProgram:
        """The chain as a tile program."""

    @property
    def before(self) -> Mapping[int, int]:
        """Operation -> the one with a scalar whose result it alone reads."""

    @property
    def core(self) -> CoreSpec:
        """The core that it is for."""

    def seen(self, operand: Reference | Immediate, axes: frozenset[int]) -> Scalar:
        """A value walked over all of some dimensions."""


class _Step(NamedTuple):
    """data op operand; `reverse`: operand op data."""

    op: AluOp
    operand: Scalar
    reverse: bool = False


def composed(values: Tiles, number: int, dst: Access) -> Instruction | None:
    """An operation together with those before it that nobody else needs; None: it stays alone."""
    node, inner = values.program.nodes[number], _before(values, number)
    if inner is None or node.operand_dtype.name != "float32":
        return None
    over = node.axes
    if node.name in FUNCTIONS:
        return _function(values, node, inner, over, dst)
    first = _step(values, inner, _data(values, inner), over, dst)
    if first is None:
        return None
    data = values.seen(_data(values, inner), over)
    assert isinstance(data, Access)
    second = _step(values, number, Reference(inner), over, dst)
    if second is not None:
        return TensorScalar(
            dst=dst, data=data, op0=first.op, operand0=first.operand, reverse0=first.reverse,
            op1=second.op, operand1=second.operand, reverse1=second.reverse,
        )  # fmt: skip
    return _with_tensor(values, node, Reference(inner), data, first, over, dst)


def _with_tensor(
    values: Tiles,
    node: Node,
    inner: Reference,
    data: Access,
    first: _Step,
    over: frozenset[int],
    dst: Access,
) -> Instruction | None:
    if len(node.operands) != 2 or node.name not in _OPERATORS or node.name == "divide":
        return None
    other = next((operand for operand in node.operands if operand != inner), inner)
    if other == inner or not isinstance(other, Reference):
        return None
    operand = values.seen(other, over)
    assert isinstance(operand, Access)
    if operand.memory is data.memory is Memory.PSUM:
        return None
    return ScalarTensorTensor(
        dst=dst, data=data, op0=first.op, operand0=first.operand, reverse0=first.reverse,
        op1=_OPERATORS[node.name], operand1=operand, reverse1=node.operands[1] == inner,
    )  # fmt: skip


def _function(
    values: Tiles, node: Node, inner: int, over: frozenset[int], dst: Access
) -> Instruction | None:
    """function(data * scale + bias)."""
    last = _step(values, inner, _data(values, inner), over, dst)
    if last is None:
        return None
    scale: Scalar = ONE_SCALAR
    bias: Scalar | None = None
    data = _data(values, inner)
    if last.op is AluOp.MULTIPLY:
        scale = last.operand
    elif last.op is AluOp.ADD:
        bias = last.operand
    elif last.op is AluOp.SUBTRACT and isinstance(last.operand, Immediate) and not last.reverse:
        bias = Immediate(-last.operand.value)
    else:
        return None
    deeper = _before(values, inner)
    if bias is not None and deeper is not None:
        first = _step(values, deeper, _data(values, deeper), over, dst)
        if first is not None and first.op is AluOp.MULTIPLY:
            scale, data = first.operand, _data(values, deeper)
    if isinstance(bias, Immediate) and not values.core.takes_constant_bias:
        return None
    source = values.seen(data, over)
    assert isinstance(source, Access)
    return Activate(dst=dst, op=FUNCTIONS[node.name], data=source, scale=scale, bias=bias)


def _before(values: Tiles, number: int) -> int | None:
    """What an operation may take along, unless it is there already."""
    inner = values.before.get(number)
    return None if inner is None or Reference(inner) in values.known else inner


def _data(values: Tiles, number: int) -> Reference:
    """The tensor that an operation with a scalar takes: what was before it, or what varies most."""
    node, inner = values.program.nodes[number], values.before.get(number)
    if inner is not None:
        return Reference(inner)
    references = [operand for operand in node.operands if isinstance(operand, Reference)]
    return max(references, key=lambda reference: len(values.program.axes_of(reference)))


def _step(
    values: Tiles, number: int, data: Reference, over: frozenset[int], dst: Access
) -> _Step | None:
    """An operation of a tensor with a constant or with one number per partition, if it is that."""
    node = values.program.nodes[number]
    op = _OPERATORS.get(node.name)
    if op is None or node.operand_dtype.name != "float32":
        return None
    if node.name == "negate":
        return _Step(op, Immediate(-1.0))
    left, right = node.operands
    if left == right:
        return None
    reverse = left != data
    other = left if reverse else right
    if node.name == "divide":
        return (
            _Step(op, inverse_of(other)) if isinstance(other, Immediate) and not reverse else None
        )
    if isinstance(other, Immediate):
        return _Step(op, other, reverse)
    access = values.seen(other, over)
    assert isinstance(access, Access)
    is_row = access.element_type == FLOAT32 and not any(dim.stride for dim in access.dims)
    if not is_row and not (dst.free_elements == 1 and access.element_type == FLOAT32):
        return None
    if access.memory is Memory.PSUM:
        return None
    return _Step(op, replace(access, dims=(Dim(1, 1),)), reverse)
