"""Instructions for element-wise operations: a table from StableHLO names to engines.

Floating-point arithmetic goes to Vector, functions to Scalar; what must be exact in integers, or no
instruction has, to GpSimd's processors. A rule gets accesses of one size (broadcasts have strides
of 0) or constants, and writes to `dst`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neuronjax.errors import UnsupportedProgramError
from neuronjax.formats import BFLOAT16, FLOAT16, FLOAT32
from neuronjax.lower.values.storage import NARROW_FLOATS, storage_of
from neuronjax.lower.values.view import dense_strides
from neuronjax.lower.write.builder import KernelBuilder, tile_access
from neuronjax.machine.specs import Engine
from neuronjax.program.element_types import INTEGERS, ElementType
from neuronjax.program.gpsimd_engine import CustomOp
from neuronjax.program.operand import Access, Dim, Immediate, Scalar
from neuronjax.program.operators import Activation, AluOp, CustomFunction
from neuronjax.program.scalar_engine import Activate
from neuronjax.program.vector_engine import (
    CopyPredicated,
    Memset,
    Reciprocal,
    SelectReduce,
    TensorCopy,
    TensorScalar,
    TensorTensor,
)


@dataclass(frozen=True)
class Work:
    """An operation on tiles."""

    builder: KernelBuilder
    name: str
    attributes: Mapping[str, Any]
    dst: Access
    srcs: tuple[Scalar, ...]
    #: Type of the first operand that is no predicate, and of the result.
    operand: np.dtype
    result: np.dtype

    def temporary(self, dtype: ElementType | None = None) -> Access:
        """A tile of dst's size."""
        sizes = self.dst.sizes
        tile = self.builder.tile(
            (self.dst.partitions, *sizes), dtype or self.dst.element_type, name="x"
        )
        return tile_access(tile, sizes, dense_strides(sizes))

    def emit(self, instruction: Any) -> None:
        self.builder.emit(instruction)

    def custom(self, function: CustomFunction, *srcs: Scalar) -> None:
        """dst = a function of GpSimd's processors; constants alone carry their type."""
        if not any(isinstance(src, Access) for src in srcs):
            own = storage_of(self.operand).dtype
            srcs = tuple(Immediate(src.value, own) for src in srcs if isinstance(src, Immediate))
        self.emit(CustomOp(dst=self.dst, function=function, srcs=srcs))


Rule = Callable[[Work], None]


def emit(work: Work) -> None:
    """Writes the instructions of an operation.

    Raises:
      UnsupportedProgramError: there is no rule for it.
    """
    rule = RULES.get(work.name)
    if rule is None:
        raise UnsupportedProgramError(f"the engines have no element-wise operation {work.name}")
    rule(work)


def is_float(dtype: np.dtype) -> bool:
    """Whether engines compute with it in float32 without loss."""
    return not np.issubdtype(dtype, np.integer) and dtype != np.bool_ and dtype.name not in _ODD


_ODD = frozenset({"float64", "complex64", "complex128", "int2", "int4", "uint2", "uint4"})
_WORDS = frozenset({"int32", "uint32"})
_SMALL = frozenset({"int8", "uint8", "int16", "uint16", "bool"})


def _is_foreign_float(dtype: np.dtype) -> bool:
    """Whether it is a floating-point type that engines do not read and write themselves."""
    return dtype.name.startswith(("float8", "float4")) and dtype.name not in NARROW_FLOATS


def _is_native_float(dtype: np.dtype) -> bool:
    """Whether it is a floating-point type that engines read and write themselves."""
    return is_float(dtype) and not _is_foreign_float(dtype)


def _custom(function: CustomFunction) -> Rule:
    return lambda work: work.custom(function, *work.srcs)


def arithmetic(work: Work, op: AluOp) -> None:
    """A float32 operator on Vector; what is one number per row becomes its scalar."""
    left, right = work.srcs
    if isinstance(left, Access) and isinstance(right, Access):
        _of_tensors(work, left, right, op)
    elif isinstance(left, Access):
        work.emit(TensorScalar(dst=work.dst, data=left, op0=op, operand0=right))
    elif isinstance(right, Access):
        work.emit(TensorScalar(dst=work.dst, data=right, op0=op, operand0=left, reverse0=True))
    else:
        filled = work.temporary()
        fill(work.builder, filled, left)
        work.emit(TensorScalar(dst=work.dst, data=filled, op0=op, operand0=right))


def _of_tensors(work: Work, left: Access, right: Access, op: AluOp) -> None:
    rows = [_row_scalar(work, operand) for operand in (left, right)]
    if rows[1] is not None:
        work.emit(TensorScalar(dst=work.dst, data=left, op0=op, operand0=rows[1]))
    elif rows[0] is not None:
        work.emit(TensorScalar(dst=work.dst, data=right, op0=op, operand0=rows[0], reverse0=True))
    else:
        work.emit(TensorTensor(dst=work.dst, data1=left, data2=right, op=op))


def _row_scalar(work: Work, src: Access) -> Access | None:
    """The element per partition, if an access in float32 walks over nothing else."""
    if src.element_type != FLOAT32 or work.dst.free_elements == 1:
        return None
    return None if any(dim.stride for dim in src.dims) else replace(src, dims=(Dim(1, 1),))


def fill(builder: KernelBuilder, dst: Access, value: Scalar) -> None:
    """dst = a constant, or a copy."""
    if isinstance(value, Immediate):
        if dst.element_type.storage_bits > 32:
            own = replace(value, element_type=dst.element_type)
            builder.emit(CustomOp(dst=dst, function=CustomFunction.CONVERT, srcs=(own,)))
        elif _is_byte_float(dst.element_type):
            builder.emit(Memset(dst=as_bits(dst), value=_encoded(value, dst.element_type)))
        else:
            builder.emit(Memset(dst=dst, value=value))
    else:
        copy(builder, dst, value)


def _is_byte_float(dtype: ElementType) -> bool:
    """Whether it is a floating-point type that not all engines write."""
    return isinstance(dtype, type(FLOAT32)) and dtype.storage_bits == 8


def _encoded(value: Immediate, dtype: ElementType) -> Immediate:
    """The bits of a number in a floating-point type of one byte."""
    number = np.asarray(value.value, np.float32).astype(getattr(dtype, "dtype", np.float32))
    return Immediate(int(number.view(np.uint8)))


_RAW: dict[int, ElementType] = {
    8: INTEGERS["uint8"], 16: INTEGERS["uint16"], 32: INTEGERS["uint32"], 64: INTEGERS["uint64"],
}  # fmt: skip


def as_bits(access: Access) -> Access:
    """The elements of an access as unsigned integers."""
    return replace(access, dtype=_RAW[access.element_type.storage_bits])


def copy(builder: KernelBuilder, dst: Access, src: Access) -> None:
    """dst = src of the same type, bit by bit."""
    if dst.element_type.storage_bits > 32:
        bits = CustomFunction.CONVERT
        builder.emit(CustomOp(dst=as_bits(dst), function=bits, srcs=(as_bits(src),)))
    elif _is_byte_float(dst.element_type):
        builder.emit(TensorCopy(dst=as_bits(dst), src=as_bits(src)))
    else:
        builder.emit(TensorCopy(dst=dst, src=src))


def _binary(op: AluOp, function: CustomFunction, of_bool: AluOp | None = None) -> Rule:
    """A float operator; exact integers on GpSimd; a bit operator for truth values."""
    exact = _custom(function)

    def rule(work: Work) -> None:
        tensors = all(isinstance(src, Access) for src in work.srcs)
        if work.operand == np.bool_ and of_bool is not None:
            arithmetic(work, of_bool)
        elif _is_native_float(work.operand):
            arithmetic(work, op)
        elif work.operand.name in _WORDS and tensors:
            left, right = (src for src in work.srcs if isinstance(src, Access))
            work.emit(
                TensorTensor(dst=work.dst, data1=left, data2=right, op=op, engine=Engine.GPSIMD)
            )
        else:
            exact(work)

    return rule


def _bits(op: AluOp, function: CustomFunction) -> Rule:
    exact = _custom(function)

    def rule(work: Work) -> None:
        if work.operand.itemsize > 4 or work.operand.name in _ODD:
            exact(work)
        else:
            arithmetic(work, op)

    return rule


def _not(work: Work) -> None:
    (src,), true = work.srcs, Immediate(1)
    if work.operand != np.bool_:
        work.custom(CustomFunction.NOT, src)
    elif isinstance(src, Access):
        work.emit(TensorScalar(dst=work.dst, data=src, op0=AluOp.BITWISE_XOR, operand0=true))
    else:
        work.custom(CustomFunction.XOR, src, true)


def _shift(op: AluOp, function: CustomFunction) -> Rule:
    exact = _custom(function)

    def rule(work: Work) -> None:
        data, amount = work.srcs
        in_range = isinstance(amount, Immediate) and 0 <= amount.value < 8 * work.operand.itemsize
        plain = np.issubdtype(work.operand, np.unsignedinteger) and work.operand.itemsize <= 4
        if in_range and plain and isinstance(data, Access):
            work.emit(TensorScalar(dst=work.dst, data=data, op0=op, operand0=amount))
        else:
            exact(work)

    return rule


def _function(activation: Activation) -> Rule:
    """A function of the Scalar engine."""
    return lambda work: work.emit(
        Activate(dst=work.dst, op=activation, data=_tensor(work, *work.srcs))
    )


def _tensor(work: Work, src: Scalar) -> Access:
    """A constant as a tile; an access as it is."""
    if isinstance(src, Access):
        return src
    tile = work.temporary(storage_of(work.operand).dtype)
    fill(work.builder, tile, src)
    return tile


def _unary(op: AluOp, function: CustomFunction, *, operand: Scalar | None = None) -> Rule:
    exact = _custom(function)

    def rule(work: Work) -> None:
        (src,) = work.srcs
        if _is_native_float(work.operand) and isinstance(src, Access):
            work.emit(TensorScalar(dst=work.dst, data=src, op0=op, operand0=operand))
        else:
            exact(work)

    return rule


def _divide(work: Work) -> None:
    """a / b = a * (1 / b): the engines have no division. Integers divide on GpSimd."""
    left, right = work.srcs
    if not is_float(work.operand):
        work.custom(CustomFunction.DIVIDE, *work.srcs)
        return
    inverse: Scalar
    if isinstance(right, Immediate):
        inverse = inverse_of(right)
    else:
        inverse = _inverse(work, right)
        if isinstance(left, Immediate) and left.value == 1:
            work.emit(TensorCopy(dst=work.dst, src=inverse))
            return
    arithmetic(replace(work, srcs=(left, inverse)), AluOp.MULTIPLY)


def inverse_of(divisor: Immediate) -> Immediate:
    """The number to multiply by in place of a division by a constant, which engines do not have."""
    with np.errstate(all="ignore"):
        return Immediate(float(np.float32(1) / np.float32(divisor.value)))


def _inverse(work: Work, data: Access) -> Access:
    """1 / data, of each element that it walks over once."""
    kept = [dim for dim in data.dims if dim.stride] or [Dim(1, 1)]
    sizes = [dim.size for dim in kept]
    strides = dense_strides(sizes)
    tile = work.builder.tile((data.partitions, *sizes), FLOAT32, name="x")
    dense = tile_access(tile, sizes, strides)
    work.emit(Reciprocal(dst=dense, data=replace(data, dims=tuple(kept))))
    following = iter(strides)
    steps = [next(following) if dim.stride else 0 for dim in data.dims]
    return tile_access(tile, [dim.size for dim in data.dims], steps)


def _select(work: Work) -> None:
    predicate, on_true, on_false = work.srcs
    if isinstance(predicate, Immediate):
        fill(work.builder, work.dst, on_true if predicate.value else on_false)
        return
    if work.result.itemsize > 4:
        work.custom(CustomFunction.SELECT, *work.srcs)
        return
    dst = work.dst
    if _is_foreign_float(work.result):
        dst = as_bits(dst)
        on_true, on_false = (
            as_bits(operand) if isinstance(operand, Access) else operand
            for operand in (on_true, on_false)
        )
        if Immediate in {type(on_true), type(on_false)}:
            work.custom(CustomFunction.SELECT, *work.srcs)
            return
    at_once = selection(work)
    if at_once is not None:
        work.emit(at_once)
        return
    fill(work.builder, dst, on_false)
    work.emit(CopyPredicated(dst=dst, src=on_true, predicate=predicate))


_FLOATS = (FLOAT32, BFLOAT16, FLOAT16)


def selection(work: Work) -> SelectReduce | None:
    """A selection between a tensor of numbers that float32 holds and a constant."""
    predicate, on_true, on_false = work.srcs
    reverse = isinstance(on_true, Immediate)
    tensor, constant = (on_false, on_true) if reverse else (on_true, on_false)
    if not isinstance(predicate, Access) or not isinstance(constant, Immediate):
        return None
    if not isinstance(tensor, Access) or tensor.element_type not in _FLOATS:
        return None
    return SelectReduce(
        dst=work.dst, predicate=predicate, on_true=tensor, on_false=constant, reverse_pred=reverse
    )


def _clamp(work: Work) -> None:
    low, data, high = work.srcs
    are_numbers = isinstance(low, Immediate) and isinstance(high, Immediate)
    if _is_native_float(work.operand) and isinstance(data, Access) and are_numbers:
        work.emit(
            TensorScalar(
                dst=work.dst, data=data, op0=AluOp.MAXIMUM, operand0=low,
                op1=AluOp.MINIMUM, operand1=high,
            )
        )  # fmt: skip
        return
    bounded = work.temporary()
    RULES["maximum"](replace(work, name="maximum", dst=bounded, srcs=(data, low)))
    RULES["minimum"](replace(work, name="minimum", srcs=(bounded, high)))


_COMPARISONS = {
    "EQ": AluOp.EQUAL, "NE": AluOp.NOT_EQUAL, "GE": AluOp.GREATER_EQUAL, "GT": AluOp.GREATER,
    "LE": AluOp.LESS_EQUAL, "LT": AluOp.LESS,
}  # fmt: skip


def writes_truth(attributes: Mapping[str, Any], operand: np.dtype, tensors: int) -> bool:
    """Whether a comparison of so many tensors is an instruction that writes 0 and 1 in any type."""
    if attributes.get("compare_type") == "TOTALORDER" and is_float(operand):
        return False
    if operand.name in _SMALL or _is_native_float(operand):
        return tensors > 0
    return operand.name in _WORDS and tensors == 2


def _compare(work: Work) -> None:
    direction = work.attributes["comparison_direction"]
    exact = CustomFunction(f"compare_{direction.lower()}")
    if work.attributes.get("compare_type") == "TOTALORDER" and is_float(work.operand):
        keys = tuple(_ordered(work, src) for src in work.srcs)
        work.custom(exact, *keys)
        return
    tensors = [src for src in work.srcs if isinstance(src, Access)]
    if not writes_truth(work.attributes, work.operand, len(tensors)):
        work.custom(exact, *work.srcs)
    elif work.operand.name in _WORDS:
        left, right = tensors
        op = _COMPARISONS[direction]
        work.emit(TensorTensor(dst=work.dst, data1=left, data2=right, op=op, engine=Engine.GPSIMD))
    else:
        arithmetic(work, _COMPARISONS[direction])


def _ordered(work: Work, src: Scalar) -> Access:
    """Integers in the total order of floating-point bits: -NaN < -inf < … < inf < NaN."""
    data = _tensor(work, src)
    bits = 8 * work.operand.itemsize
    signed = INTEGERS[f"int{bits}"]
    raw = replace(data, dtype=signed)
    sign, low, key = (work.temporary(signed) for _ in range(3))
    shift = CustomFunction.SHIFT_RIGHT_ARITHMETIC
    work.emit(CustomOp(dst=sign, function=shift, srcs=(raw, Immediate(bits - 1))))
    mask = Immediate((1 << (bits - 1)) - 1)
    work.emit(CustomOp(dst=low, function=CustomFunction.AND, srcs=(sign, mask)))
    work.emit(CustomOp(dst=key, function=CustomFunction.XOR, srcs=(raw, low)))
    return key


def _convert(work: Work) -> None:
    (src,) = work.srcs
    if work.result == np.bool_:
        work.custom(CustomFunction.COMPARE_NE, src, Immediate(0))
    elif isinstance(src, Immediate) and work.operand == work.result:
        fill(work.builder, work.dst, src)
    elif isinstance(src, Immediate):
        work.custom(CustomFunction.CONVERT, src)
    elif work.operand == work.result:
        copy(work.builder, work.dst, src)
    elif _engines_convert(work.operand, work.result):
        work.emit(TensorCopy(dst=work.dst, src=src))
    else:
        work.custom(CustomFunction.CONVERT, src)


def _engines_convert(operand: np.dtype, result: np.dtype) -> bool:
    """Whether a copy through float32 is exact up to one rounding, and of types engines have."""
    if _is_foreign_float(operand) or _is_foreign_float(result):
        return False
    if is_float(operand):
        return is_float(result)
    exact_in_float32 = operand.name in _SMALL
    return is_float(result) and (
        exact_in_float32 or (result.name == "float32" and operand.name in _WORDS)
    )


def _bitcast(work: Work) -> None:
    (src,) = work.srcs
    copy(work.builder, as_bits(work.dst), as_bits(_tensor(work, src)))


FUNCTIONS: Mapping[str, Activation] = {
    "exponential": Activation.EXP, "log": Activation.LOG, "logistic": Activation.SIGMOID,
    "tanh": Activation.TANH, "sqrt": Activation.SQRT, "rsqrt": Activation.RSQRT,
    "chlo.erf": Activation.ERF, "gelu": Activation.GELU,
    "gelu_dx": Activation.GELU_DX, "gelu_apprx_tanh": Activation.GELU_APPRX_TANH,
}  # fmt: skip
"""Functions of the Scalar engine."""

_ON_GPSIMD = (
    CustomFunction.REMAINDER, CustomFunction.POWER, CustomFunction.ATAN2,
    CustomFunction.SHIFT_RIGHT_ARITHMETIC, CustomFunction.POPCNT,
    CustomFunction.COUNT_LEADING_ZEROS, CustomFunction.SIGN, CustomFunction.FLOOR,
    CustomFunction.CEIL, CustomFunction.ROUND_NEAREST_AFZ, CustomFunction.ROUND_NEAREST_EVEN,
    CustomFunction.IS_FINITE, CustomFunction.CBRT, CustomFunction.COSINE, CustomFunction.SINE,
    CustomFunction.TAN, CustomFunction.EXPONENTIAL_MINUS_ONE, CustomFunction.LOG_PLUS_ONE,
    CustomFunction.MULTIPLY_HIGH,
)  # fmt: skip
"""Functions that GpSimd alone has, of every type."""

RULES: dict[str, Rule] = {
    **{function.value: _custom(function) for function in _ON_GPSIMD},
    "add": _binary(AluOp.ADD, CustomFunction.ADD, AluOp.BITWISE_OR),
    "subtract": _binary(AluOp.SUBTRACT, CustomFunction.SUBTRACT),
    "multiply": _binary(AluOp.MULTIPLY, CustomFunction.MULTIPLY, AluOp.BITWISE_AND),
    "maximum": _binary(AluOp.MAXIMUM, CustomFunction.MAXIMUM, AluOp.BITWISE_OR),
    "minimum": _binary(AluOp.MINIMUM, CustomFunction.MINIMUM, AluOp.BITWISE_AND),
    "divide": _divide,
    "and": _bits(AluOp.BITWISE_AND, CustomFunction.AND),
    "or": _bits(AluOp.BITWISE_OR, CustomFunction.OR),
    "xor": _bits(AluOp.BITWISE_XOR, CustomFunction.XOR),
    "not": _not,
    "shift_left": _shift(AluOp.LEFT_SHIFT, CustomFunction.SHIFT_LEFT),
    "shift_right_logical": _shift(AluOp.RIGHT_SHIFT, CustomFunction.SHIFT_RIGHT_LOGICAL),
    "abs": _unary(AluOp.ABS, CustomFunction.ABS),
    "negate": _unary(AluOp.MULTIPLY, CustomFunction.NEGATE, operand=Immediate(-1.0)),
    **{name: _function(function) for name, function in FUNCTIONS.items()},
    "select": _select,
    "clamp": _clamp,
    "compare": _compare,
    "convert": _convert,
    "bitcast_convert": _bitcast,
    "retype": _bitcast,
}
"""StableHLO operation -> its instructions.

Two are no operations of StableHLO: `multiply_high` is the upper half of a product, `retype` reads
what is stored in the same way as another type.
"""
