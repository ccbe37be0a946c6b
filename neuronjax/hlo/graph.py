"""StableHLO as plain records: values, operations with their attributes as Python values, regions.

The records describe a program without MLIR's object model; an operation keeps its MLIR counterpart
for printing. Functions are inlined during reading, so that a single graph is the whole program.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from neuronjax.errors import UnsupportedProgramError
from neuronjax.hlo.location import NOWHERE, Origin, common_scope, in_phase, origin
from neuronjax.hlo.module import (
    CONVERSION,
    ELEMENT_TYPES,
    TOKEN,
    TensorSpec,
    main_function,
    name_of,
    tensor_spec,
)
from neuronjax.jaxlib_api.mlir import PassManager, ir, stablehlo

AttributeValue: TypeAlias = (
    bool
    | int
    | float
    | str
    | np.ndarray
    | tuple["AttributeValue", ...]
    | dict[str, "AttributeValue"]
)
"""What `attribute_value` makes of an attribute."""
Attributes: TypeAlias = dict[str, Any]
"""Name -> `AttributeValue`, of the kind that the operation has under that name."""


@dataclass(eq=False, slots=True)
class Value:
    """A tensor: a result of an operation, or a parameter."""

    spec: TensorSpec
    producer: Op | None = field(default=None, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def dtype(self) -> np.dtype:
        return self.spec.dtype

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to store: it has no elements, or is a token."""
        return self.spec.dtype == TOKEN or not math.prod(self.spec.shape)


@dataclass(eq=False, slots=True)
class Op:
    """An operation. `name` has no prefix if it is StableHLO's; other dialects keep theirs.

    Functions to which a custom call refers are regions of it.
    """

    name: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attributes: Attributes
    regions: tuple[Graph, ...]
    source: str
    #: The MLIR operation; valid as long as its module.
    mlir: ir.Operation | None = field(repr=False)
    #: The user's name scopes about it, such as ``block_3/attention``, or else the modules.
    scope: str = ""

    @property
    def result(self) -> Value:
        """The only result of the op."""
        (result,) = self.results
        return result


@dataclass(eq=False, slots=True)
class Graph:
    """Operations in order; those of regions may use values of enclosing graphs."""

    parameters: tuple[Value, ...]
    operations: list[Op]
    results: tuple[Value, ...]

    def nested(self) -> Iterator[Graph]:
        """Yields the graphs of its regions, innermost first, and then itself."""
        for op in self.operations:
            for region in op.regions:
                yield from region.nested()
        yield self

    def captured(self) -> Iterator[Value]:
        """The distinct values of enclosing graphs that operations use."""
        known: set[Value] = set(self.parameters)
        for op in self.operations:
            for value in op.operands:
                if value not in known:
                    known.add(value)
                    yield value
            for region in op.regions:
                for value in region.captured():
                    if value not in known:
                        known.add(value)
                        yield value
            known.update(op.results)
        for value in self.results:
            if value not in known:
                known.add(value)
                yield value


def prepare(module: ir.Module) -> None:
    """Eliminates common subexpressions and dead code; in place."""
    manager = PassManager.parse("builtin.module(symbol-dce,cse)", context=module.context)
    manager.run(module.operation)


def read(module: ir.Module) -> Graph:
    """The graph of `main`, with calls replaced by the bodies of the called functions.

    Raises:
      UnsupportedProgramError: dynamic shapes, or types unknown to PJRT.
    """
    functions = {
        op.name.value: op.entry_block
        for op in module.body.operations
        if op.operation.name == "func.func"
    }
    program = name_of(module).removeprefix("jit_")
    return _Reader(functions, program).graph(main_function(module).entry_block, {})


@dataclass
class _Reader:
    functions: dict[str, ir.Block]
    #: The name of the jitted function.
    program: str
    #: Scopes about the calls that lead here.
    scopes: tuple[str, ...] = ()
    #: Where the innermost of these calls with a known line comes from.
    call: Origin = NOWHERE
    #: Location -> what it says: many operations have one, and its text is long.
    origins: dict[ir.Attribute, Origin] = field(default_factory=dict)

    def graph(self, block: ir.Block, known: dict[ir.Value, Value]) -> Graph:
        parameters = tuple(Value(tensor_spec(argument.type)) for argument in block.arguments)
        known = {**known, **dict(zip(block.arguments, parameters, strict=True))}
        operations: list[Op] = []
        results = self.operations(block, known, operations)
        return Graph(parameters, operations, results)

    def operations(
        self, block: ir.Block, known: dict[ir.Value, Value], into: list[Op]
    ) -> tuple[Value, ...]:
        """Appends a block's operations to `into`; returns the values that the block returns."""
        for view in block.operations:
            operation = view.operation
            operands = tuple(known[operand] for operand in operation.operands)
            if operation.name in _RETURNS:
                return operands
            if operation.name in _CALLS:
                called = self.functions[attribute_value(operation.attributes["callee"])]
                if CONVERSION in called.owner.attributes:
                    op = self.operation(operation, operands[:1], known)
                    op.name, op.attributes, op.mlir = "convert", {}, None
                    known.update(zip(operation.results, op.results, strict=True))
                    into.append(op)
                    continue
                inner = dict(zip(called.arguments, operands, strict=True))
                made_at = self.origin(operation)
                reader = replace(self, scopes=(*self.scopes, made_at.scope), call=made_at)
                results = reader.operations(called, inner, into)
                known.update(zip(operation.results, results, strict=True))
                continue
            if _is_identity(operation):
                known.update(zip(operation.results, operands, strict=True))
                continue
            if operation.name == "sdy.manual_computation":
                block = operation.regions[0].blocks[0]
                inner = {**known, **dict(zip(block.arguments, operands, strict=True))}
                results = self.operations(block, inner, into)
                known.update(zip(operation.results, results, strict=True))
                continue
            op = self.operation(operation, operands, known)
            known.update(zip(operation.results, op.results, strict=True))
            into.append(op)
        return ()

    def operation(
        self, operation: ir.Operation, operands: tuple[Value, ...], known: dict[ir.Value, Value]
    ) -> Op:
        regions = [region.blocks[0] for region in operation.regions if len(region.blocks)]
        if "called_computations" in operation.attributes:
            names = attribute_value(operation.attributes["called_computations"])
            regions += [self.functions[name] for name in names]
        made_at = self.origin(operation)
        scopes = "/".join(filter(None, (*self.scopes, made_at.scope)))
        op = Op(
            name=operation.name.removeprefix("stablehlo."),
            operands=operands,
            results=tuple(Value(tensor_spec(value.type)) for value in operation.results),
            attributes={name: _attribute(operation, name) for name in operation.attributes},
            regions=tuple(self.graph(block, known) for block in regions),
            source=made_at.source,
            mlir=operation,
            scope=in_phase(scopes or made_at.layer, made_at.phase),
        )
        if op.name == "while":
            _scope_loop(op)
        for value in op.results:
            value.producer = op
        if op.name in _MODERN:
            op.name, op.attributes = _MODERN[op.name](op)
        return op

    def origin(self, operation: ir.Operation) -> Origin:
        location = operation.location.attr
        if location not in self.origins:
            self.origins[location] = origin(operation, self.program)
        return self.origins[location].within(self.call)


def _scope_loop(loop: Op) -> None:
    """Gives a loop, and what it does for itself, the scope that all of its body shares."""
    within = [op for region in loop.regions for op in region.operations]
    shared = common_scope(op.scope for op in within)
    for op in within:
        if not op.scope and op.source == loop.source:
            op.scope = shared
    loop.scope = loop.scope or shared


def _dot_general(op: Op) -> tuple[str, Attributes]:
    """A product over the last dimension of the left and the first one of the right operand."""
    numbers = {
        "lhs_batching_dimensions": (),
        "rhs_batching_dimensions": (),
        "lhs_contracting_dimensions": (len(op.operands[0].shape) - 1,),
        "rhs_contracting_dimensions": (0,),
    }
    return "dot_general", {**op.attributes, "dot_dimension_numbers": numbers}


def _top_k(op: Op) -> tuple[str, Attributes]:
    """The form in which XLA's partitioner leaves `chlo.top_k`."""
    return ("chlo.top_k" if op.attributes.get("largest", True) else op.name), op.attributes


def _convolution(op: Op) -> tuple[str, Attributes]:
    """A convolution with its optional attributes filled in."""
    count = len(op.attributes["dimension_numbers"]["input_spatial_dimensions"])
    ones = (1,) * count
    defaults = {
        "window_strides": ones,
        "lhs_dilation": ones,
        "rhs_dilation": ones,
        "window_reversal": None,
        "padding": np.zeros((count, 2), np.int64),
    }
    return op.name, {**defaults, **op.attributes}


_MODERN: dict[str, Callable[[Op], tuple[str, Attributes]]] = {
    "convolution": _convolution, "dot": _dot_general, "mhlo.topk": _top_k,
}  # fmt: skip
"""Operations that are special cases of others -> name and attributes of the others."""


_CALLS = frozenset({"func.call", "call"})
_RETURNS = frozenset({"func.return", "stablehlo.return", "sdy.return"})
_IDENTITIES = frozenset({
    "sdy.sharding_constraint", "sdy.propagation_barrier", "Sharding", "SPMDFullToShardShape",
    "SPMDShardToFullShape", "xla.sdy.Sharding", "xla.sdy.FuncResultSharding", "LayoutConstraint",
    "annotate_device_placement", "mhlo.copy",
})  # fmt: skip
"""Copies, and operations and targets of custom calls that only concern a partitioner."""


def _is_identity(operation: ir.Operation) -> bool:
    """Whether an operation returns its operands; a program of one core has no shardings."""
    name = operation.name
    if name == "stablehlo.custom_call":
        name = attribute_value(operation.attributes["call_target_name"])
    return name in _IDENTITIES


def _attribute(operation: ir.Operation, name: str) -> AttributeValue:
    try:
        return attribute_value(operation.attributes[name])
    except TypeError:  # complex numbers, which the bindings do not know
        return _complex(str(operation), tensor_spec(operation.results[0].type))


def _complex(text: str, spec: TensorSpec) -> np.ndarray:
    """The array of a constant of complex numbers: pairs, or all bytes as one string."""
    return _parsed(text[text.index("dense<") :], spec, np.dtype(f"f{spec.dtype.itemsize // 2}"))


def attribute_value(attribute: ir.Attribute) -> Any:
    """An attribute as a number, string, tuple, array or dictionary, or else as its text."""
    if isinstance(attribute, ir.DenseElementsAttr):
        known = str(attribute.type.element_type) in ELEMENT_TYPES
        return _elements(attribute) if known else str(attribute)
    for kind, convert in _CONVERSIONS:
        if isinstance(attribute, kind):
            return convert(attribute)
    for name, fields in _DIMENSION_NUMBERS.items():
        if getattr(stablehlo, name).isinstance(attribute):
            numbers = getattr(stablehlo, name)(attribute)
            return {field: _plain(getattr(numbers, field)) for field in fields}
    text = str(attribute)
    return text.rpartition(" ")[2].rstrip(">") if text.startswith("#stablehlo<") else text


def _elements(attribute: ir.DenseElementsAttr) -> np.ndarray:
    """The array of a constant; a splat takes the memory of a single element."""
    spec = tensor_spec(attribute.type)
    try:
        array = np.asarray(attribute)
    except TypeError:  # numpy lacks the type
        array = _parsed(str(attribute), spec, spec.dtype)
    if attribute.is_splat and spec.shape and array.size:
        element = np.array(array[(0,) * array.ndim])
        return np.broadcast_to(element.view(spec.dtype), spec.shape)
    return np.array(array).view(spec.dtype)


def _parsed(text: str, spec: TensorSpec, part: np.dtype) -> np.ndarray:
    """The array in ``dense<…>``: numbers whose parts are of a type, bit patterns (``0x7FC0``), or
    all bytes as one string."""
    body = text[len("dense<") : text.rindex("> : ")]
    if body.startswith('"0x'):
        return np.frombuffer(bytes.fromhex(body[3:-1]), spec.dtype).reshape(spec.shape)
    numbers = [_number(token, part) for token in _TOKEN.findall(body)]
    array = np.array(numbers).astype(part).view(spec.dtype)
    return np.broadcast_to(array[0], spec.shape) if array.size == 1 else array.reshape(spec.shape)


_TOKEN = re.compile(r"[-+.\w]+")


def _number(token: str, dtype: np.dtype) -> np.generic:
    if token.startswith("0x"):
        bits = bytes.fromhex(token[2:].zfill(2 * dtype.itemsize))
        return np.frombuffer(bits[::-1], dtype)[0]
    return dtype.type(float(token)) if "e" in token or "." in token else dtype.type(int(token))


def _plain(value: int | Sequence[int]) -> int | tuple[int, ...]:
    return value if isinstance(value, int) else tuple(value)


_CONVERSIONS: tuple[tuple[type[ir.Attribute], Callable[[ir.Attribute], AttributeValue]], ...] = (
    (ir.DenseI64ArrayAttr, tuple),
    (ir.DenseBoolArrayAttr, tuple),
    (ir.BoolAttr, lambda attribute: bool(attribute.value)),
    (ir.IntegerAttr, lambda attribute: int(attribute.value)),
    (ir.FloatAttr, lambda attribute: float(attribute.value)),
    (ir.StringAttr, lambda attribute: str(attribute.value)),
    (ir.FlatSymbolRefAttr, lambda attribute: str(attribute.value)),
    (ir.ArrayAttr, lambda attribute: tuple(map(attribute_value, attribute))),
    (
        ir.DictAttr,
        lambda attribute: {named.name: attribute_value(named.attr) for named in attribute},
    ),
)

_DIMENSION_NUMBERS: dict[str, tuple[str, ...]] = {
    "DotDimensionNumbers": (
        "lhs_batching_dimensions", "rhs_batching_dimensions",
        "lhs_contracting_dimensions", "rhs_contracting_dimensions",
    ),
    "ConvDimensionNumbers": (
        "input_batch_dimension", "input_feature_dimension", "input_spatial_dimensions",
        "kernel_input_feature_dimension", "kernel_output_feature_dimension",
        "kernel_spatial_dimensions",
        "output_batch_dimension", "output_feature_dimension", "output_spatial_dimensions",
    ),
    "GatherDimensionNumbers": (
        "offset_dims", "collapsed_slice_dims", "operand_batching_dims",
        "start_indices_batching_dims", "start_index_map", "index_vector_dim",
    ),
    "ScatterDimensionNumbers": (
        "update_window_dims", "inserted_window_dims", "input_batching_dims",
        "scatter_indices_batching_dims", "scattered_dims_to_operand_dims", "index_vector_dim",
    ),
    "ChannelHandle": ("handle", "channel_type"),
}  # fmt: skip
"""Structured attributes -> names of their parts."""


def refuse(op: Op, why: str) -> UnsupportedProgramError:
    """The error for an operation that cannot be lowered, with its types and source."""
    operands = ", ".join(f"{value.dtype.name}{list(value.shape)}" for value in op.operands)
    return UnsupportedProgramError(f"{op.name}({operands}) at {op.source}: {why}")
