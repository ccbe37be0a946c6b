"""Enumerations for fields of instructions; the values are NKI's names.

Sources: Neuron docs, "NKI API common fields" (math operators, activation functions) and NKI ISA
(`reduce_cmd`, `dge_mode`, `oob_mode`, `matmul_perf_mode`).
"""

from __future__ import annotations

import enum


class AluOp(enum.Enum):
    """Operators of the element-wise engines."""

    # Bit vectors: integers only, no casts.
    INVERT = "invert"
    BITWISE_AND = "bitwise_and"
    BITWISE_OR = "bitwise_or"
    BITWISE_XOR = "bitwise_xor"
    LEFT_SHIFT = "left_shift"
    RIGHT_SHIFT = "right_shift"
    # Arithmetic: in float32.
    ADD = "add"
    SUBTRACT = "subtract"
    MULTIPLY = "multiply"
    MAXIMUM = "maximum"
    MINIMUM = "minimum"
    EQUAL = "equal"
    NOT_EQUAL = "not_equal"
    GREATER_EQUAL = "greater_equal"
    GREATER = "greater"
    LESS_EQUAL = "less_equal"
    LESS = "less"
    LOGICAL_AND = "logical_and"
    LOGICAL_OR = "logical_or"
    LOGICAL_XOR = "logical_xor"
    POWER = "power"
    ABS_MAX = "abs_max"
    ABS_MIN = "abs_min"
    # Arithmetic of one argument.
    ABS = "abs"
    SQUARE = "square"
    RELU = "relu"
    RSQRT = "rsqrt"
    RECIPROCAL = "reciprocal"
    # The first argument as it is (`activate2`).
    BYPASS = "bypass"


BITVECTOR = frozenset({
    AluOp.INVERT, AluOp.BITWISE_AND, AluOp.BITWISE_OR, AluOp.BITWISE_XOR, AluOp.LEFT_SHIFT,
    AluOp.RIGHT_SHIFT,
})  # fmt: skip
"""Operators on bit patterns."""

UNARY = frozenset({
    AluOp.INVERT, AluOp.ABS, AluOp.SQUARE, AluOp.RELU, AluOp.RSQRT, AluOp.RECIPROCAL, AluOp.BYPASS,
})  # fmt: skip
"""Operators of one argument."""

REDUCTIONS = frozenset({
    AluOp.BITWISE_AND, AluOp.BITWISE_OR, AluOp.BITWISE_XOR, AluOp.ADD, AluOp.SUBTRACT,
    AluOp.MULTIPLY, AluOp.MAXIMUM, AluOp.MINIMUM, AluOp.LOGICAL_AND, AluOp.LOGICAL_OR,
    AluOp.LOGICAL_XOR,
})  # fmt: skip
"""Operators that `tensor_reduce` takes."""

COMPARISONS = frozenset({
    AluOp.EQUAL, AluOp.NOT_EQUAL, AluOp.GREATER_EQUAL, AluOp.GREATER, AluOp.LESS_EQUAL, AluOp.LESS,
})  # fmt: skip
"""Operators with the results 0.0 and 1.0."""


class Activation(enum.Enum):
    """Functions of the Scalar engine."""

    COPY = "copy"
    SQUARE = "square"
    SIGMOID = "sigmoid"
    RELU = "relu"
    PRELU = "prelu"
    GELU = "gelu"
    GELU_DX = "gelu_dx"
    GELU_APPRX_TANH = "gelu_apprx_tanh"
    GELU_APPRX_SIGMOID = "gelu_apprx_sigmoid"
    GELU_APPRX_SIGMOID_DX = "gelu_apprx_sigmoid_dx"
    SILU = "silu"
    SILU_DX = "silu_dx"
    TANH = "tanh"
    SOFTPLUS = "softplus"
    MISH = "mish"
    ERF = "erf"
    ERF_DX = "erf_dx"
    EXP = "exp"
    LOG = "log"
    SIN = "sin"
    ARCTAN = "arctan"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    RECIPROCAL = "reciprocal"
    SIGN = "sign"
    ABS = "abs"


class CustomFunction(enum.Enum):
    """Element-wise functions of `custom_op`; names and meanings are those of StableHLO."""

    ABS = "abs"
    ADD = "add"
    AND = "and"
    ATAN2 = "atan2"
    CBRT = "cbrt"
    CEIL = "ceil"
    COMPARE_EQ = "compare_eq"
    COMPARE_GE = "compare_ge"
    COMPARE_GT = "compare_gt"
    COMPARE_LE = "compare_le"
    COMPARE_LT = "compare_lt"
    COMPARE_NE = "compare_ne"
    #: Between any two types, as StableHLO converts: float to integer towards zero.
    CONVERT = "convert"
    COSINE = "cosine"
    COUNT_LEADING_ZEROS = "count_leading_zeros"
    DIVIDE = "divide"
    EXPONENTIAL_MINUS_ONE = "exponential_minus_one"
    FLOOR = "floor"
    IS_FINITE = "is_finite"
    LOG_PLUS_ONE = "log_plus_one"
    MAXIMUM = "maximum"
    MINIMUM = "minimum"
    MULTIPLY = "multiply"
    #: The upper half of the product of two integers, which 32-bit random generators need.
    MULTIPLY_HIGH = "multiply_high"
    NEGATE = "negate"
    NOT = "not"
    OR = "or"
    POPCNT = "popcnt"
    POWER = "power"
    REMAINDER = "remainder"
    ROUND_NEAREST_AFZ = "round_nearest_afz"
    ROUND_NEAREST_EVEN = "round_nearest_even"
    SELECT = "select"
    SHIFT_LEFT = "shift_left"
    SHIFT_RIGHT_ARITHMETIC = "shift_right_arithmetic"
    SHIFT_RIGHT_LOGICAL = "shift_right_logical"
    SIGN = "sign"
    SINE = "sine"
    SUBTRACT = "subtract"
    TAN = "tan"
    XOR = "xor"


class ReduceCommand(enum.Enum):
    """What an instruction does with the accumulator registers of its engine."""

    IDLE = "idle"
    RESET = "reset"
    REDUCE = "reduce"
    RESET_REDUCE = "reset_reduce"
    LOAD_REDUCE = "load_reduce"


class PartitionReduction(enum.Enum):
    """Operators of `tensor_partition_reduce`."""

    ADD = "add"
    AVERAGE = "average"
    MAX = "max"
    BITWISE_OR = "bitwise_or"
    BITWISE_AND = "bitwise_and"


class PerformanceMode(enum.Enum):
    """Performance modes of a matmul."""

    NONE = "none"
    DOUBLE_ROW = "double_row"


class DescriptorMode(enum.Enum):
    """Who makes the descriptors of a DMA (`dge_mode`)."""

    #: The runtime, before the program runs: addresses depend on nothing known later.
    STATIC = "none"
    SOFTWARE = "swdge"
    HARDWARE = "hwdge"


class OutOfBounds(enum.Enum):
    """What happens to an index outside its tensor at run time (`oob_mode`)."""

    ERROR = "error"
    SKIP = "skip"


class ExchangeEngine(enum.Enum):
    """What moves the data of `sendrecv` (`dma_engine`)."""

    DMA = "dma"
    GPSIMD_DMA = "gpsimd_dma"
