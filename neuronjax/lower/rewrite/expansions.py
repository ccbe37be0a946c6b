"""Operations that are others put together: on bits, on types of less than a byte, batch norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.chain import elementwise
from neuronjax.lower.chain.box_values import IDENTITIES
from neuronjax.lower.operations import PACKED, is_row_reduction, is_splat, reducer
from neuronjax.lower.reduction import windows
from neuronjax.lower.region import is_emittable
from neuronjax.lower.rewrite import early_gathers, random
from neuronjax.lower.rewriter import Rewrite, Writer
from neuronjax.lower.sort import top_k
from neuronjax.lower.values.storage import is_native


def _bits_of(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"u{dtype.itemsize}")


def reduce_precision(writer: Writer, op: Op) -> Sequence[Value] | None:
    """Rounds the mantissa on bits; too great becomes infinity, subnormal results become zero."""
    (value,) = op.operands
    if not elementwise.is_float(value.dtype):
        return None
    info = ml_dtypes.finfo(value.dtype)
    exponent, mantissa = op.attributes["exponent_bits"], op.attributes["mantissa_bits"]
    if mantissa >= info.nmant and exponent >= info.nexp:
        return (value,)
    bits = writer.add("bitcast_convert", value, dtype=_bits_of(value.dtype))
    if mantissa < info.nmant:
        bits = _rounded(writer, bits, info.nmant - mantissa)
    if exponent < info.nexp:
        bits = _in_range(writer, bits, info.nexp, info.nmant, exponent)
    result = writer.add("bitcast_convert", bits, dtype=value.dtype)
    is_nan = writer.compare("NE", value, value)
    nan = value if mantissa else writer.constant(np.inf, value)
    return (writer.add("select", is_nan, nan, result),)


def _rounded(writer: Writer, bits: Value, dropped: int) -> Value:
    """Without the last bits, to nearest even."""
    last = writer.add("shift_right_logical", bits, writer.constant(dropped, bits))
    last = writer.add("and", last, writer.constant(1, bits))
    bias = writer.constant((1 << (dropped - 1)) - 1, bits)
    total = writer.add("add", bits, writer.add("add", last, bias))
    return writer.add("and", total, _mask(writer, bits, ~((1 << dropped) - 1)))


def _mask(writer: Writer, bits: Value, mask: int) -> Value:
    return writer.constant(mask & ((1 << 8 * bits.dtype.itemsize) - 1), bits)


def _in_range(writer: Writer, bits: Value, exponents: int, mantissa: int, kept: int) -> Value:
    """Exponents beyond those of `kept` bits give infinity or zero."""
    bias, reduced = (1 << (exponents - 1)) - 1, (1 << (kept - 1)) - 1
    everything = ((1 << exponents) - 1) << mantissa
    exponent = writer.add("and", bits, _mask(writer, bits, everything))
    sign = writer.add("and", bits, _mask(writer, bits, 1 << (exponents + mantissa)))
    infinity = writer.add("or", sign, _mask(writer, bits, everything))
    greatest = writer.constant((bias + reduced) << mantissa, bits)
    least = writer.constant((bias - reduced) << mantissa, bits)
    bits = writer.add("select", writer.compare("GT", exponent, greatest), infinity, bits)
    return writer.add("select", writer.compare("LE", exponent, least), sign, bits)


def bitcast_convert(writer: Writer, op: Op) -> Sequence[Value] | None:
    """A cast between widths shifts parts of words; the least significant part comes first."""
    (value,), result = op.operands, op.result
    sizes = value.dtype.itemsize, result.dtype.itemsize
    if sizes[0] == sizes[1] or not _are_plain(value, result) or not math.prod(value.shape):
        return None
    unsigned = writer.add("bitcast_convert", value, dtype=_bits_of(value.dtype))
    joins = sizes[0] < sizes[1]
    made = (_joined if joins else _parted)(writer, unsigned, _bits_of(result.dtype))
    return (writer.add("bitcast_convert", made, dtype=result.dtype),)


def _are_plain(*values: Value) -> bool:
    return _are_native(values) and not any(v.dtype in PACKED or v.dtype == bool for v in values)


def _are_native(values: Sequence[Value]) -> bool:
    return all(is_native(value.dtype) for value in values)


def _parted(writer: Writer, value: Value, narrow: np.dtype) -> Value:
    parts = []
    for index in range(value.dtype.itemsize // narrow.itemsize):
        amount = writer.constant(8 * narrow.itemsize * index, value)
        part = writer.convert(writer.add("shift_right_logical", value, amount), narrow)
        parts.append(writer.reshape(part, (*value.shape, 1)))
    return writer.concatenate(parts, len(value.shape))


def _joined(writer: Writer, value: Value, wide: np.dtype) -> Value:
    axis = len(value.shape) - 1
    total: Value | None = None
    for index in range(value.shape[axis]):
        part = writer.slice(value, axis, index, index + 1)
        word = writer.convert(writer.reshape(part, value.shape[:axis]), wide)
        amount = writer.constant(8 * value.dtype.itemsize * index, word)
        word = writer.add("shift_left", word, amount)
        total = word if total is None else writer.add("or", total, word)
    assert total is not None
    return total


def map_(writer: Writer, op: Op) -> Sequence[Value] | None:
    """The region's operations, on whole tensors."""
    (region,) = op.regions
    if not is_emittable(region):
        return None
    shape = op.result.shape
    known: dict[Value, Value] = dict(zip(region.parameters, op.operands, strict=True))
    for inner in region.operations:
        if inner.name == "constant":
            made = writer.constant(inner.attributes["value"].flat[0], op.result, inner.result.dtype)
        else:
            operands = [_whole(writer, known, operand, shape) for operand in inner.operands]
            made = writer.add(
                inner.name, *operands, shape=shape, dtype=inner.result.dtype, **inner.attributes
            )
        known[inner.result] = made
    return [_whole(writer, known, result, shape) for result in region.results]


def _whole(
    writer: Writer, known: Mapping[Value, Value], value: Value, shape: tuple[int, ...]
) -> Value:
    return known[value] if value in known else writer.broadcast(value, shape, ())


def packed(writer: Writer, op: Op) -> Sequence[Value] | None:
    """Integers of 2 and 4 bits are computed as those of 8, and wrap to their width."""
    values = (*op.operands, *op.results)
    if not any(v.dtype in PACKED for v in values) or not _are_native(values):
        return None
    operands = [_unpacked(writer, operand) for operand in op.operands]
    attributes: dict[str, Any] = dict(op.attributes)
    made = writer.add(
        op.name, *operands, shape=op.result.shape, dtype=_wide(op.result.dtype), **attributes
    )
    if op.name == "convert" and elementwise.is_float(op.operands[0].dtype):
        low, high = (writer.constant(bound, made) for bound in _range(op.result.dtype))
        made = writer.add("clamp", low, made, high)
    return (_wrapped(writer, made, op.result.dtype),)


def packed_product(writer: Writer, op: Op) -> Sequence[Value] | None:
    """Sums of products wrap to 2 and 4 bits as a whole."""
    dtype = op.result.dtype
    if dtype not in PACKED or not _are_native(op.operands):
        return None
    total = writer.add(
        op.name, *op.operands, shape=op.result.shape, dtype=np.int32, **dict(op.attributes)
    )
    return (_wrapped(writer, writer.convert(total, _wide(dtype)), dtype),)


def _range(dtype: np.dtype) -> tuple[int, int]:
    """The least and the greatest number of a type of less than a byte."""
    info = ml_dtypes.iinfo(dtype)
    return int(info.min), int(info.max)


def _unpacked(writer: Writer, value: Value) -> Value:
    wide = _wide(value.dtype)
    return value if wide == value.dtype else writer.add("retype", value, dtype=wide)


def _wide(dtype: np.dtype) -> np.dtype:
    if dtype not in PACKED:
        return dtype
    return np.dtype(np.uint8 if dtype.name.startswith("u") else np.int8)


def _wrapped(writer: Writer, value: Value, dtype: np.dtype) -> Value:
    """The last bits of bytes as a type of so many bits."""
    if dtype not in PACKED:
        return value
    amount = writer.constant(8 - int(dtype.name.removeprefix("u").removeprefix("int")), value)
    shift = "logical" if dtype.name.startswith("u") else "arithmetic"
    value = writer.add("shift_left", value, amount)
    value = writer.add(f"shift_right_{shift}", value, amount)
    return writer.add("retype", value, dtype=dtype)


def batch_norm_inference(writer: Writer, op: Op) -> Sequence[Value] | None:
    """operand · scale' + offset', with what is constant for a feature put together."""
    if not _are_native(op.operands):
        return None
    operand, scale, offset, mean, variance = op.operands
    factor = writer.add("multiply", scale, _inverse_deviation(writer, op, variance))
    shift = writer.add("subtract", offset, writer.add("multiply", mean, factor))
    product = writer.add("multiply", operand, _feature(writer, op, factor))
    return (writer.add("add", product, _feature(writer, op, shift)),)


def _inverse_deviation(writer: Writer, op: Op, variance: Value) -> Value:
    epsilon = writer.constant(op.attributes["epsilon"], variance)
    return writer.add("rsqrt", writer.add("add", variance, epsilon))


def _feature(writer: Writer, op: Op, value: Value) -> Value:
    """A number for each feature along all other dimensions."""
    return writer.broadcast(value, op.operands[0].shape, (op.attributes["feature_index"],))


def _mean(writer: Writer, op: Op, value: Value) -> Value:
    """Over all dimensions but that of features."""
    feature = op.attributes["feature_index"]
    total = writer.sum(value, [dim for dim in range(len(value.shape)) if dim != feature])
    count = math.prod(value.shape) // value.shape[feature]
    return writer.add("multiply", total, writer.constant(1 / count, total))


def batch_norm_training(writer: Writer, op: Op) -> Sequence[Value] | None:
    """Normalized values, means and variances."""
    if not _are_native(op.operands):
        return None
    operand, scale, offset = op.operands
    mean = _mean(writer, op, operand)
    centered = writer.add("subtract", operand, _feature(writer, op, mean))
    variance = _mean(writer, op, writer.add("multiply", centered, centered))
    factor = writer.add("multiply", scale, _inverse_deviation(writer, op, variance))
    product = writer.add("multiply", centered, _feature(writer, op, factor))
    return writer.add("add", product, _feature(writer, op, offset)), mean, variance


def batch_norm_grad(writer: Writer, op: Op) -> Sequence[Value] | None:
    """Gradients of the operand, the scale and the offset."""
    if not _are_native(op.operands):
        return None
    operand, scale, mean, variance, gradient = op.operands
    inverse = _inverse_deviation(writer, op, variance)
    centered = writer.add("subtract", operand, _feature(writer, op, mean))
    normal = writer.add("multiply", centered, _feature(writer, op, inverse))
    weighted = writer.add("multiply", gradient, normal)
    mean_gradient, mean_weighted = _mean(writer, op, gradient), _mean(writer, op, weighted)
    part = writer.add("multiply", normal, _feature(writer, op, mean_weighted))
    rest = writer.add("subtract", gradient, _feature(writer, op, mean_gradient))
    rest = writer.add("subtract", rest, part)
    factor = writer.add("multiply", scale, inverse)
    of_operand = writer.add("multiply", rest, _feature(writer, op, factor))
    feature = op.attributes["feature_index"]
    others = [dim for dim in range(len(operand.shape)) if dim != feature]
    return of_operand, writer.sum(weighted, others), writer.sum(gradient, others)


def convert(writer: Writer, op: Op) -> Sequence[Value] | None:
    """A constant of another type is a constant."""
    (value,) = op.operands
    made, dtype = value.producer, op.result.dtype
    floats = elementwise.is_float(value.dtype) and elementwise.is_float(dtype)
    exact = np.issubdtype(value.dtype, np.integer) and dtype.name == "float32"
    if made is None or made.name != "constant" or not (floats or exact):
        return packed(writer, op)
    array = _converted(made.attributes["value"], dtype)
    return (writer.add("constant", shape=value.shape, dtype=dtype, value=array),)


def _converted(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The numbers of an array, rounded once; one for all elements stays one."""
    is_splat = not any(array.strides)
    with np.errstate(over="ignore"):
        converted = (array.flat[0] if is_splat and array.size else array).astype(dtype)
    return np.broadcast_to(converted, array.shape)


_OF_EQUALS: Mapping[str, Callable[[float, int], float]] = {
    "add": lambda number, count: number * count,
    "multiply": lambda number, count: number**count,
    "maximum": lambda number, _: number,
    "minimum": lambda number, _: number,
    "and": lambda number, _: number,
    "or": lambda number, _: number,
}
"""Operator of a row reduction -> what it gives for so many equal numbers, before rounding."""


def reduce(writer: Writer, op: Op) -> Sequence[Value] | None:
    """Equal numbers that are known need no pass over them."""
    number = _number(op.operands[0]) if is_row_reduction(op) else None
    if number is None:
        return None
    name, init = str(reducer(op)), op.operands[1]
    count = math.prod(op.operands[0].shape[dim] for dim in op.attributes["dimensions"])
    with np.errstate(over="ignore"):
        total = _OF_EQUALS[name](np.float64(number), count)
    made = writer.constant(total, op.result)
    if _number(init) == IDENTITIES[name]:
        return (made,)
    return (writer.add(name, made, writer.broadcast(init, op.result.shape, ())),)


def _number(value: Value) -> np.generic | None:
    """The one number of all elements, if it is known."""
    if is_splat(value):
        return value.producer.attributes["value"].flat[0]  # type: ignore[union-attr]
    made = value.producer
    if made is None or made.name not in ("broadcast_in_dim", "reshape", "convert"):
        return None
    number = _number(made.operands[0])
    if number is None or not elementwise.is_float(made.operands[0].dtype):
        return None if made.name == "convert" else number
    with np.errstate(over="ignore"):
        return number.astype(value.dtype)


_PACKED_OPERATIONS = (
    "abs", "add", "and", "clamp", "compare", "convert", "divide", "maximum", "minimum", "multiply",
    "negate", "not", "or", "popcnt", "remainder", "select", "sign", "subtract", "xor",
)  # fmt: skip

REWRITES: dict[str, Rewrite] = {
    **random.REWRITES,
    **windows.REWRITES,
    **top_k.REWRITES,
    **early_gathers.REWRITES,
    **dict.fromkeys(_PACKED_OPERATIONS, packed),
    "batch_norm_grad": batch_norm_grad,
    "batch_norm_inference": batch_norm_inference,
    "batch_norm_training": batch_norm_training,
    "bitcast_convert": bitcast_convert,
    "convert": convert,
    "convolution": packed_product,
    "dot_general": packed_product,
    "map": map_,
    "reduce": reduce,
    "reduce_precision": reduce_precision,
}
"""Operation -> what it is in terms of others."""
