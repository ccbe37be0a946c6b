"""Custom calls on MX blocks: QuantizeMX, and the matrix product of its results."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from neuronjax.hlo.custom_calls import custom_call_target
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.rules.rule import Check, Rule, Site, stablehlo
from neuronjax.machine.specs import MX_BLOCK, MX_WORD

QUANTIZE = "QuantizeMX"
MATMUL = ("__op$block_scaled_dot", "ScaledMatmul")
_ELEMENTS = ("float8_e5m2", "float8_e4m3fn")


class _Malformed(ValueError):
    """The backend_config is malformed."""


def _config(op: ir.Operation) -> dict[str, Any]:
    """The ``backend_config`` as an object. Raises ``_Malformed``."""
    attribute = op.attributes.get("backend_config")
    if not isinstance(attribute, ir.StringAttr):
        raise _Malformed("there is no text in backend_config")
    try:
        config = json.loads(attribute.value)
    except json.JSONDecodeError as error:
        raise _Malformed(f"backend_config: {error}") from None
    if not isinstance(config, dict):
        raise _Malformed("backend_config is not an object")
    return config


def _tensor(type_: ir.Type) -> ir.RankedTensorType:
    """A type as a tensor's. Raises ``_Malformed``."""
    if not isinstance(type_, ir.RankedTensorType):
        raise _Malformed(f"{type_} is not a tensor")
    return type_


def _shape(value: ir.Value) -> list[int]:
    """The shape of a value. Raises ``_Malformed``."""
    return list(_tensor(value.type).shape)


def _element(type_: ir.Type) -> str:
    """The element type of a tensor's type. Raises ``_Malformed``."""
    return str(_tensor(type_).element_type)


def _on(targets: tuple[str, ...], check: Callable[[Site], str | None]) -> Check:
    """``check`` for custom calls of these targets; malformed calls are left to another rule."""

    def guarded(site: Site) -> str | None:
        if custom_call_target(site.op) not in targets:
            return None
        try:
            return check(site)
        except _Malformed:
            return None

    return guarded


# QuantizeMX


def _quantize_config(site: Site) -> str | None:
    if custom_call_target(site.op) != QUANTIZE:
        return None
    try:
        _config(site.op)
    except _Malformed as error:
        return str(error)
    return None


def _one_operand(site: Site) -> str | None:
    count = len(site.op.operands)
    return None if count == 1 else f"it has {count} operands"


def _dimension(site: Site) -> tuple[int, list[int]]:
    """The quantized dimension, counted from 0, and the input's shape. Raises ``_Malformed``."""
    dim = _config(site.op).get("dim", 0)
    if not site.op.operands:
        raise _Malformed("no input")
    shape = _shape(site.op.operands[0])
    allowed = {-1, len(shape) - 1} if shape else set()
    if len(shape) >= 2:
        allowed |= {-2, len(shape) - 2}
    if dim not in allowed:
        raise _Malformed(f"dim is {dim}, the input has rank {len(shape)}")
    return dim % len(shape), shape


def _invalid_dimension(site: Site) -> str | None:
    _config(site.op)
    try:
        _dimension(site)
    except _Malformed as error:
        return str(error)
    return None


def _block_size(site: Site) -> str | None:
    size = _config(site.op).get("block_size", MX_BLOCK)
    return None if size == MX_BLOCK else f"block_size is {size}"


def _scale_method(site: Site) -> str | None:
    method = _config(site.op).get("scale_method", "EMAX")
    return None if method == "EMAX" else f"scale_method is {method!r}"


def _input_type(site: Site) -> str | None:
    unsupported = site.program.elements(site.op.operands) - {"bf16", "f16"}
    return f"the input is {min(unsupported)}" if unsupported else None


def _malformed_quantize(site: Site) -> str | None:
    dtype = _config(site.op).get("dtype")
    if dtype not in _ELEMENTS:
        return f"dtype is {dtype!r}, it must be one of {', '.join(_ELEMENTS)}"
    types = [result.type for result in site.op.results]
    if not types:
        return "it has no results"
    if _element(types[0]) != "ui32":
        return f"quantized_data is {_element(types[0])}, it must be ui32"
    dim, shape = _dimension(site)
    wanted = [size // MX_WORD if axis == dim else size for axis, size in enumerate(shape)]
    given = list(types[0].shape)
    if len(given) == len(wanted) and given != wanted:
        return f"quantized_data has shape {given}, it must be {wanted}"
    return None


def _two_results(site: Site) -> str | None:
    count = len(site.op.results)
    return None if count == 2 else f"it has {count} results"


def _indivisible(site: Site) -> str | None:
    dim, shape = _dimension(site)
    return f"dimension {dim} has size {shape[dim]}" if shape[dim] % MX_WORD else None


def _e4m3fn_converted(site: Site) -> str | None:
    if _config(site.op).get("dtype") != "float8_e4m3fn":
        return None
    if site.policy.fp8_e4m3fn_as_e4m3:
        return "MX operations do not support conversion to F8E4M3"
    return "the logical type is float8_e4m3fn" if site.policy.core_version < 4 else None


# ScaledMatmul

_LISTS = (
    "lhs_batch_dimensions", "rhs_batch_dimensions",
    "lhs_contracting_dimensions", "rhs_contracting_dimensions",
)  # fmt: skip


def _dimensions(op: ir.Operation) -> dict[str, list[int]]:
    """The lists of dimensions in a product's configuration. Raises ``_Malformed``."""
    attribute = op.attributes.get("backend_config")
    text = attribute.value if isinstance(attribute, ir.StringAttr) else ""
    config = _config(op) if text not in ("", "None") else {}
    inner = config.get("scaled_dot_backend_config", {})
    if not isinstance(inner, dict):
        raise _Malformed("scaled_dot_backend_config is not an object")
    try:
        return {name: [int(number) for number in inner.get(name, [])] for name in _LISTS}
    except (TypeError, ValueError) as error:
        raise _Malformed(f"a dimension is not a whole number: {error}") from None


def _matmul_config(site: Site) -> str | None:
    if custom_call_target(site.op) not in MATMUL:
        return None
    try:
        _dimensions(site.op)
    except _Malformed as error:
        return str(error)
    return None


def _four_operands(site: Site) -> str | None:
    count = len(site.op.operands)
    return None if count == 4 else f"it has {count} operands"


def _sides(site: Site) -> list[tuple[str, list[int], list[int], int]]:
    """Per side: name, shape, batch dimensions, contracting dimension. Raises ``_Malformed``."""
    if len(site.op.operands) < 2:
        raise _Malformed("there are no two sides")
    numbers = _dimensions(site.op)
    sides = []
    for name, operand in zip(("lhs", "rhs"), site.op.operands, strict=False):
        shape = _shape(operand)
        contracting = numbers[f"{name}_contracting_dimensions"] or [len(shape) - 1]
        sides.append((name, shape, numbers[f"{name}_batch_dimensions"], contracting[0]))
    return sides


def _lhs_type(site: Site) -> str | None:
    unsupported = site.program.elements(list(site.op.operands)[:1]) - {"ui32"}
    return f"the left-hand side is {min(unsupported)}" if unsupported else None


def _output_type(site: Site) -> str | None:
    unsupported = site.program.elements(site.op.results) - {"f32", "bf16"}
    return f"the result is {min(unsupported)}" if unsupported else None


def _rank(side: int) -> Callable[[Site], str | None]:
    def check(site: Site) -> str | None:
        operands = list(site.op.operands)
        if len(operands) <= side:
            return None
        rank = len(_shape(operands[side]))
        return f"it has rank {rank}" if rank < 2 else None

    return check


def _in_range(shape: list[int], dimensions: list[int]) -> bool:
    return all(0 <= dimension < len(shape) for dimension in dimensions)


def _batch_mismatch(site: Site) -> str | None:
    (_, lhs, lhs_batch, _), (_, rhs, rhs_batch, _) = _sides(site)
    if len(lhs_batch) != len(rhs_batch):
        return None
    if not (_in_range(lhs, lhs_batch) and _in_range(rhs, rhs_batch)):
        return None
    sizes = [
        math.prod(shape[axis] for axis in axes)
        for shape, axes in ((lhs, lhs_batch), (rhs, rhs_batch))
    ]
    return None if sizes[0] == sizes[1] else f"the batches have {sizes[0]} and {sizes[1]} elements"


def _contracting_mismatch(site: Site) -> str | None:
    sides = _sides(site)
    if not all(_in_range(shape, [axis]) for _, shape, _, axis in sides):
        return None
    sizes = [shape[axis] for _, shape, _, axis in sides]
    return None if sizes[0] == sizes[1] else f"the sizes are {sizes[0]} and {sizes[1]}"


def _overlap(site: Site) -> str | None:
    for name, _, batch, contracting in _sides(site):
        if contracting in batch:
            return f"dimension {contracting} of {name} is both"
    return None


def _batch_out_of_range(site: Site) -> str | None:
    for name, shape, batch, _ in _sides(site):
        if not _in_range(shape, batch):
            return f"batch dimensions {batch} of {name}, which has rank {len(shape)}"
    return None


def _contracting_out_of_range(site: Site) -> str | None:
    for name, shape, _, contracting in _sides(site):
        if not _in_range(shape, [contracting]):
            return f"contracting dimension {contracting} of {name}, which has rank {len(shape)}"
    return None


_CALL = stablehlo("custom_call")
_Row = tuple[str, str, Check, str, str]

_QUANTIZE_ROWS: tuple[_Row, ...] = (
    (
        "EVRF036", "backend_config", _quantize_config, "has invalid backend_config JSON",
        "Provide a JSON object in backend_config.",
    ),
    (
        "EVRF037", "operands", _on((QUANTIZE,), _one_operand),
        "operand count must be exactly 1 (input tensor)", "Pass the input tensor alone.",
    ),
    (
        "EVRF038", "dimension", _on((QUANTIZE,), _invalid_dimension),
        "dim is invalid for input tensor rank", "Use the last dimension or the one before it.",
    ),
    (
        "EVRF039", "block size", _on((QUANTIZE,), _block_size), "block_size must be 32",
        "Use block_size 32.",
    ),
    (
        "EVRF040", "scale method", _on((QUANTIZE,), _scale_method),
        "scale_method is unsupported", 'Use "EMAX".',
    ),
    (
        "EVRF041", "input type", _on((QUANTIZE,), _input_type), "input type is unsupported",
        "Convert the input to bfloat16 or float16 first.",
    ),
    (
        "EVRF042", "form", _on((QUANTIZE,), _malformed_quantize), "is malformed",
        "Name float8_e5m2 or float8_e4m3fn, and return U32 of a quarter of the quantized size.",
    ),
    (
        "EVRF051", "float8_e4m3fn", _on((QUANTIZE,), _e4m3fn_converted),
        "uses data type F8E4M3FN, which is not supported on TRN1/TRN2",
        "Target Trn3 without --experimental-unsafe-fp8e4m3fn-as-fp8e4m3.",
    ),
    (
        "EVRF057", "results", _on((QUANTIZE,), _two_results),
        "must return a tuple with exactly 2 outputs", "Return quantized_data and scale.",
    ),
    (
        "EVRF058", "size", _on((QUANTIZE,), _indivisible),
        "input dimension must be divisible by 4", "Pad the quantized dimension.",
    ),
)  # fmt: skip

_MATMUL_ROWS: tuple[_Row, ...] = (
    (
        "EVRF043", "operands", _on(MATMUL, _four_operands), "must have exactly 4 operands",
        "Pass lhs, rhs, lhs_scale and rhs_scale.",
    ),
    (
        "EVRF044", "left-hand type", _on(MATMUL, _lhs_type), "LHS input type is unsupported",
        "Pass the packed U32 data that QuantizeMX returns.",
    ),
    (
        "EVRF045", "result type", _on(MATMUL, _output_type), "output type is unsupported",
        "Declare the result as float32 or bfloat16.",
    ),
    (
        "EVRF046", "left-hand rank", _on(MATMUL, _rank(0)), "LHS tensor must have rank >= 2",
        "Reshape the left-hand side to a matrix.",
    ),
    (
        "EVRF047", "right-hand rank", _on(MATMUL, _rank(1)), "RHS tensor must have rank >= 2",
        "Reshape the right-hand side to a matrix.",
    ),
    (
        "EVRF048", "batch", _on(MATMUL, _batch_mismatch), "batch dimension mismatch",
        "Give both sides batches of the same number of elements.",
    ),
    (
        "EVRF049", "backend_config", _matmul_config, "could not parse backend_config",
        "Provide JSON with whole numbers in each list of dimensions.",
    ),
    (
        "EVRF050", "contracting sizes", _on(MATMUL, _contracting_mismatch),
        "contracting dimension sizes mismatch", "Contract dimensions of the same size.",
    ),
    (
        "EVRF053", "overlap", _on(MATMUL, _overlap),
        "contracting dimension overlaps with batch dimension", "Keep the two apart.",
    ),
    (
        "EVRF054", "batch range", _on(MATMUL, _batch_out_of_range),
        "batch dimension index out of bounds", "Count dimensions from 0 below the rank.",
    ),
    (
        "EVRF055", "contracting range", _on(MATMUL, _contracting_out_of_range),
        "contracting dimension index out of bounds", "Count dimensions from 0 below the rank.",
    ),
)  # fmt: skip


def _rules(name: str, rows: tuple[_Row, ...]) -> tuple[Rule, ...]:
    return tuple(
        Rule(
            code=code,
            what=f"{name}: {what}",
            ops=_CALL,
            check=check,
            message=f"{name} custom call {message}",
            remedy=remedy,
            source=f"Neuron compiler error codes, NCC_{code}",
        )
        for code, what, check, message, remedy in rows
    )


RULES = _rules("QuantizeMX", _QUANTIZE_ROWS) + _rules("ScaledMatmul", _MATMUL_ROWS)
