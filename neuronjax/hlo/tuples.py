"""Takes tuples out of a module: the form that custom calls have after a way through HLO.

JAX writes no tuples, and nothing behind this needs to know of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from neuronjax.jaxlib_api.mlir import ir

_TUPLE, _ELEMENT, _CUSTOM_CALL = (
    f"stablehlo.{name}" for name in ("tuple", "get_tuple_element", "custom_call")
)
_OF_TUPLES = ("xla_shape", "result_layout")
"""Attributes of a custom call that describe its results as one tuple."""
_ALIASES = "output_operand_aliases"

_Elements: TypeAlias = ir.Value | tuple["_Elements", ...]
"""A value, or what a tuple consists of."""


def flatten_tuples(module: ir.Module) -> None:
    """Makes custom calls take and return the elements of their tuples, in place.

    Tuples remain only as arguments and results of functions, and in what is computed of these.
    Needs the module's MLIR context to be current.
    """
    of_tuples: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name in (_TUPLE, _ELEMENT) or (op.name == _CUSTOM_CALL and _has_tuples(op)):
            of_tuples.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    elements: dict[ir.Value, _Elements] = {}
    for op in of_tuples:
        if op.name == _TUPLE:
            elements[op.results[0]] = tuple(elements.get(value, value) for value in op.operands)
        elif op.name == _ELEMENT:
            whole = elements.get(op.operands[0])
            if isinstance(whole, tuple):
                elements[op.results[0]] = whole[ir.IntegerAttr(op.attributes["index"]).value]
        else:
            _flatten_call(op, elements)
    for old, new in elements.items():
        if not isinstance(new, tuple):
            old.replace_all_uses_with(new)
    for op in reversed(of_tuples):
        if not any(True for result in op.results for _ in result.uses):
            op.erase()


def _has_tuples(op: ir.Operation) -> bool:
    return any(isinstance(value.type, ir.TupleType) for value in (*op.operands, *op.results))


def _flatten_call(op: ir.Operation, elements: dict[ir.Value, _Elements]) -> None:
    types = [leaf for result in op.results for leaf in _leaf_types(result.type)]
    attributes = {name: op.attributes[name] for name in op.attributes if name not in _OF_TUPLES}
    if _ALIASES in attributes and len(types) == 1:
        text = str(attributes[_ALIASES])
        text = text.replace("output_tuple_indices = [0]", "output_tuple_indices = []")
        attributes[_ALIASES] = ir.Attribute.parse(text)
    new = ir.Operation.create(
        op.name,
        results=types,
        operands=[
            leaf for operand in op.operands for leaf in _leaves(elements.get(operand, operand))
        ],
        attributes=attributes,
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    made = iter(new.results)
    for result in op.results:
        elements[result] = _filled(result.type, made)


def _leaf_types(type_: ir.Type) -> Iterator[ir.Type]:
    if isinstance(type_, ir.TupleType):
        for index in range(type_.num_types):
            yield from _leaf_types(type_.get_type(index))
    else:
        yield type_


def _leaves(elements: _Elements) -> Iterator[ir.Value]:
    if isinstance(elements, tuple):
        for element in elements:
            yield from _leaves(element)
    else:
        yield elements


def _filled(type_: ir.Type, values: Iterator[ir.Value]) -> _Elements:
    """The values, as many as a type has leaves, in the form of that type."""
    if not isinstance(type_, ir.TupleType):
        return next(values)
    return tuple(_filled(type_.get_type(index), values) for index in range(type_.num_types))
