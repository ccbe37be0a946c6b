"""Reading and writing StableHLO modules: bytes to MLIR and back, and the signature of ``main``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import cached_property

import ml_dtypes
import numpy as np

from neuronjax.errors import CompileError, UnsupportedProgramError
from neuronjax.hlo.layouts import LAYOUT_MODE, Order, argument_order, result_order
from neuronjax.hlo.location import name_of_value
from neuronjax.jaxlib_api import mlir
from neuronjax.jaxlib_api.mlir import func, ir, stablehlo

ELEMENT_TYPES: dict[str, np.dtype] = {
    "i1": np.dtype(np.bool_),
    "i2": np.dtype(ml_dtypes.int2),
    "i4": np.dtype(ml_dtypes.int4),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "ui2": np.dtype(ml_dtypes.uint2),
    "ui4": np.dtype(ml_dtypes.uint4),
    "ui8": np.dtype(np.uint8),
    "ui16": np.dtype(np.uint16),
    "ui32": np.dtype(np.uint32),
    "ui64": np.dtype(np.uint64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "complex<f32>": np.dtype(np.complex64),
    "complex<f64>": np.dtype(np.complex128),
    "f8E3M4": np.dtype(ml_dtypes.float8_e3m4),
    "f8E4M3": np.dtype(ml_dtypes.float8_e4m3),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "f8E4M3B11FNUZ": np.dtype(ml_dtypes.float8_e4m3b11fnuz),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "f8E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "f8E8M0FNU": np.dtype(ml_dtypes.float8_e8m0fnu),
    "f4E2M1FN": np.dtype(ml_dtypes.float4_e2m1fn),
}
"""MLIR element type -> numpy dtype, every type of the PJRT C API."""


TOKEN = np.dtype(np.void)
"""Represents the type of tokens, which order side effects and hold no data."""


@dataclass(frozen=True)
class TensorSpec:
    """A static tensor type: shape in elements and numpy dtype."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of device memory; types of less than a byte are packed."""
        bits = _BITS.get(self.dtype.name, self.dtype.itemsize * 8)
        return -(-int(np.prod(self.shape, dtype=np.int64)) * bits // 8)


def type_text(spec: TensorSpec) -> str:
    """A type as ``f32[2,3]``."""
    return f"{_NAMES[spec.dtype]}[{','.join(map(str, spec.shape))}]"


_NAMES = {dtype: name for name, dtype in ELEMENT_TYPES.items()}
_BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}


@dataclass(frozen=True)
class Argument:
    """An argument of ``main`` as seen by its caller."""

    type: TensorSpec
    donated: bool = False
    layout: Order | None = None
    #: The user's, such as ``params['w']``; empty if unknown.
    name: str = ""


@dataclass(frozen=True)
class Result:
    """A result of ``main`` as seen by its caller."""

    type: TensorSpec
    memory_kind: str | None = None
    layout: Order | None = None
    #: Its place in what the user's function returns, such as ``result[0]``; empty if unknown.
    name: str = ""


@dataclass(frozen=True)
class Signature:
    """The interface of ``main``: name, arguments and results; and the mesh of the whole module."""

    name: str
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    #: Axes and sizes of the mesh that it is partitioned for; none without one.
    mesh: tuple[tuple[str, int], ...] = ()

    @cached_property
    def argument_types(self) -> tuple[TensorSpec, ...]:
        return tuple(argument.type for argument in self.arguments)

    @cached_property
    def result_types(self) -> tuple[TensorSpec, ...]:
        return tuple(result.type for result in self.results)

    @cached_property
    def donated(self) -> tuple[int, ...]:
        """The numbers of the donated arguments."""
        return tuple(index for index, entry in enumerate(self.arguments) if entry.donated)

    def without_donation(self) -> Signature:
        """This signature without donated arguments."""
        kept = tuple(replace(argument, donated=False) for argument in self.arguments)
        return replace(self, arguments=kept)


CONVERSION = "neuronjax.conversion"
"""Attribute of a function that is a conversion, written out so that XLA:CPU keeps its rounding."""


def context() -> ir.Context:
    """An MLIR context with every dialect that JAX emits."""
    return mlir.make_context()


def load(code: bytes) -> ir.Module:
    """Parses a portable artifact, bytecode or text inside the current MLIR context.

    Raises:
      CompileError: the bytes are not a StableHLO module.
    """
    try:
        if code.startswith(b"ML\xefR") and b"StableHLO_v" in code[:64]:
            return mlir.read_portable_artifact(code)
        return ir.Module.parse(code)
    except (ir.MLIRError, ValueError, RuntimeError) as error:
        raise CompileError(f"the program is not a StableHLO module: {error}") from None


def dump(module: ir.Module) -> bytes:
    """The module as MLIR bytecode."""
    return mlir.bytecode(module)


def main_function(module: ir.Module) -> func.FuncOp:
    """The entry function. Raises ``CompileError`` if there is none."""
    for op in module.body.operations:
        if op.operation.name == "func.func" and op.name.value == "main":
            return op
    raise CompileError("the program has no function named 'main'")


def tensor_spec(type_: ir.Type) -> TensorSpec:
    """Shape and dtype of a ranked tensor type.

    Raises:
      UnsupportedProgramError: a dynamic shape or an element type outside ``ELEMENT_TYPES``.
    """
    if str(type_) == "!stablehlo.token":
        return TensorSpec((), TOKEN)
    try:
        tensor = ir.RankedTensorType(type_)
    except ValueError:
        raise UnsupportedProgramError(f"main has an argument or result of type {type_}") from None
    if not tensor.has_static_shape:
        raise UnsupportedProgramError(
            f"[NCC_EMOD025] main has a dynamic shape, {type_}; shapes must be static: give every "
            "dimension a size, and pad inputs of varying length to a few fixed lengths."
        )
    element = str(tensor.element_type)
    if element not in ELEMENT_TYPES:
        raise UnsupportedProgramError(f"main has the unknown element type {element} in {type_}")
    return TensorSpec(tuple(tensor.shape), ELEMENT_TYPES[element])


def attributes(function: func.FuncOp, which: str) -> list[dict[str, ir.Attribute]]:
    """The attribute dictionaries of ``arg_attrs`` or ``res_attrs``, one per value."""
    count = len(function.type.inputs if which == "arg_attrs" else function.type.results)
    if which not in function.attributes:
        return [{} for _ in range(count)]
    return [
        {named.name: named.attr for named in ir.DictAttr(entry)}
        for entry in ir.ArrayAttr(function.attributes[which])
    ]


def name_of(module: ir.Module) -> str:
    """What JAX calls a module, such as ``jit_step``; ``main`` without a name."""
    named = "sym_name" in module.operation.attributes
    return ir.StringAttr(module.operation.attributes["sym_name"]).value if named else "main"


NUM_REPLICAS = "mhlo.num_replicas"
"""Attribute of a per-core program: how many cores run it."""


def replicas_of(module: ir.Module) -> int:
    """How many cores run a per-core program."""
    attributes = module.operation.attributes
    return ir.IntegerAttr(attributes[NUM_REPLICAS]).value if NUM_REPLICAS in attributes else 1


def mesh_of(module: ir.Module) -> tuple[tuple[str, int], ...]:
    """Axes and sizes of the mesh that a module is to be partitioned for: its largest; none without
    one, or if its devices are in an order of their own."""
    meshes = [
        tuple((axis, int(size)) for axis, size in _MESH_AXIS.findall(text))
        for op in module.body.operations
        if op.operation.name == "sdy.mesh"
        and "device_ids" not in (text := str(op.operation.attributes["mesh"]))
    ]
    return max(meshes, key=lambda axes: math.prod(size for _, size in axes), default=())


_MESH_AXIS = re.compile(r'"([^"]+)"=(\d+)')
"""An axis and its size in #sdy.mesh<["data"=2, "model"=4]>."""


_RESULT_NAME = "jax.result_info"


def signature(module: ir.Module) -> Signature:
    """Name, arguments and results of ``main``."""
    function = main_function(module)
    of_arguments = attributes(function, "arg_attrs")
    of_results = attributes(function, "res_attrs")
    arguments = tuple(
        Argument(
            tensor_spec(value.type),
            "tf.aliasing_output" in attrs or "jax.buffer_donor" in attrs,
            argument_order(function, index, attrs, of_results),
            name_of_value(value),
        )
        for index, (value, attrs) in enumerate(zip(function.arguments, of_arguments, strict=True))
    )
    layouts = tuple(argument.layout for argument in arguments)
    results = tuple(
        Result(
            tensor_spec(kind),
            ir.StringAttr(attrs["mhlo.memory_kind"]).value if "mhlo.memory_kind" in attrs else None,
            result_order(function, index, attrs, layouts),
            ir.StringAttr(attrs[_RESULT_NAME]).value if _RESULT_NAME in attrs else "",
        )
        for index, (kind, attrs) in enumerate(zip(function.type.results, of_results, strict=True))
    )
    return Signature(name_of(module), arguments, results, mesh_of(module))


def drop_layouts(module: ir.Module) -> None:
    """Removes the layouts of ``main``, since its values are row-major on the host."""
    function = main_function(module)
    for which in ("arg_attrs", "res_attrs"):
        if which in function.attributes:
            entries = attributes(function, which)
            for entry in entries:
                entry.pop(LAYOUT_MODE, None)
            function.attributes[which] = ir.ArrayAttr.get([ir.DictAttr.get(e) for e in entries])


def donations(module: ir.Module) -> dict[int, int | None]:
    """Donated argument of ``main`` -> the result that reuses its memory, if specified."""
    results: dict[int, int | None] = {}
    for index, attrs in enumerate(attributes(main_function(module), "arg_attrs")):
        if "tf.aliasing_output" in attrs:
            results[index] = ir.IntegerAttr(attrs["tf.aliasing_output"]).value
        elif "jax.buffer_donor" in attrs:
            results[index] = None
    return results


_PARAMETER_SHARDINGS = "mhlo.spmd_parameters_shardings"
_OF_ALL_CORES = ("mhlo.spmd_output_sharding", _PARAMETER_SHARDINGS)


def forget_shardings(module: ir.Module) -> None:
    """Removes what a per-core module says of the cores together, in place.

    XLA aborts when it serializes an executable of one core whose results it believes to be split.
    """
    for name in _OF_ALL_CORES:
        if name in module.operation.attributes:
            del module.operation.attributes[name]


def add_argument(function: func.FuncOp, type_: ir.Type) -> ir.BlockArgument:
    """Appends an argument to a function; if it is ``main``, its value is equal on all cores."""
    entries = [*attributes(function, "arg_attrs"), {}]
    _set_inputs(function, [*function.type.inputs, type_], entries)
    module = function.operation.parent
    if function.name.value == "main" and _PARAMETER_SHARDINGS in module.attributes:
        shardings = list(module.attributes[_PARAMETER_SHARDINGS])
        replicated = ir.StringAttr.get("{replicated}")
        module.attributes[_PARAMETER_SHARDINGS] = ir.ArrayAttr.get([*shardings, replicated])
    return function.entry_block.add_argument(type_, ir.Location.unknown())


def without_last_argument(code: bytes) -> bytes:
    """A module whose ``main`` has a zero in place of its last argument, an integer scalar."""
    with context(), ir.Location.unknown():
        module = load(code)
        function = main_function(module)
        argument = list(function.entry_block.arguments)[-1]
        with ir.InsertionPoint.at_block_begin(function.entry_block):
            kind = ir.RankedTensorType(argument.type).element_type
            zero = ir.DenseElementsAttr.get_splat(argument.type, ir.IntegerAttr.get(kind, 0))
            argument.replace_all_uses_with(stablehlo.ConstantOp(zero).result)
        function.entry_block.erase_argument(argument.arg_number)
        entries = attributes(function, "arg_attrs")
        _set_inputs(function, list(function.type.inputs)[:-1], entries[:-1])
        if _PARAMETER_SHARDINGS in module.operation.attributes:
            shardings = list(module.operation.attributes[_PARAMETER_SHARDINGS])
            module.operation.attributes[_PARAMETER_SHARDINGS] = ir.ArrayAttr.get(shardings[:-1])
        return dump(module)


def _set_inputs(
    function: func.FuncOp, inputs: list[ir.Type], entries: list[dict[str, ir.Attribute]]
) -> None:
    type_ = ir.FunctionType.get(inputs, function.type.results)
    function.operation.attributes["function_type"] = ir.TypeAttr.get(type_)
    function.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(entry) for entry in entries])
