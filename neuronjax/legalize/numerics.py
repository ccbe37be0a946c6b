"""Rewrites that give a per-core program the numerics of the chip.

One row of ``DEVIATIONS`` per documented deviation from StableHLO as XLA:CPU computes it. After
``apply`` every rounding, cast and accumulation type is an op of the program, so that whatever
computes values sees the same graph. Ops keep XLA's speed: what is added are conversions, which XLA
fuses.

Types that the chip does not have (NCC_ESPP004) have no numbers of the chip to be compared with:
FP64, the 64-bit integers that belong to it, and integers of 2 and 4 bits are computed as XLA:CPU
does.

Not here because AWS does not document it: the polynomials of the activation functions, the order
in which the systolic array sums, whether the compiler divides by multiplying with a reciprocal, and
how it rounds when a program converts a float to an integer (StableHLO truncates; the instructions
round to nearest).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronjax import formats
from neuronjax.formats import Format
from neuronjax.hlo import module as hlo
from neuronjax.jaxlib_api.mlir import ir, stablehlo
from neuronjax.legalize import activations, rounding_sites
from neuronjax.legalize.emit import (
    after,
    at,
    clamp,
    convert,
    element_type,
    filled,
    ops_of,
    recompute,
    with_element_type,
)
from neuronjax.legalize.fp64_integers import Fp64Integers
from neuronjax.legalize.op_sets import (
    COLLECTIVES,
    INTEGER_ARITHMETIC,
    INTEGER_COMBINERS,
    INTEGERS,
    INTEGERS_64,
    MATMULS,
    NARROW_FLOATS,
    PACKED_INTEGERS,
    REDUCTIONS,
    ROUNDED,
    SUMS,
    UPDATES,
    combines_with,
    feeds,
    in_closed_region,
    inner_ops,
    operand_list,
    touches,
    yields,
)
from neuronjax.legalize.policy import Policy

NATIVE_INTEGERS_V1 = frozenset({"i8", "ui8", "i32"})
"""Integer types that the Tensor engine of NeuronCore-v1 multiplies and accumulates natively."""


@dataclass(frozen=True)
class Deviation:
    """A documented way in which the chip's results differ from XLA:CPU's."""

    name: str
    what: str
    control: str
    """The flag or variable that controls it; ``""`` if there is none."""
    source: str
    applies: Callable[[Policy], bool]
    """Which chips and settings have it."""
    rewrite: Callable[[ir.Module, Policy], None]
    """Changes a module in place."""


def apply(module: ir.Module, policy: Policy) -> bool:
    """Rewrites the per-core ``module`` in place.

    Returns whether ``main`` got one more argument, the number of the run as a ui32 scalar.
    """
    ignore_dot_algorithms(module)
    if policy.numerics == "ieee":
        return False
    with ir.Location.unknown(module.context):
        for deviation in DEVIATIONS:
            if deviation.applies(policy):
                deviation.rewrite(module, policy)
        return rounding_sites.finish(module, policy)


def ignore_dot_algorithms(module: ir.Module) -> None:
    """Removes precision algorithms from dots, in place: dots run in their operands' types.

    Source: JAX NeuronX known issues, "DotAlgorithmPreset is not always respected".
    """
    for op in ops_of(module, frozenset({"stablehlo.dot_general"})):
        if "algorithm" in op.attributes:
            del op.attributes["algorithm"]


def _integers_in_32_bits(module: ir.Module, policy: Policy) -> None:
    of_fp64 = Fp64Integers(module)
    arithmetic = [
        op
        for op in ops_of(module, INTEGER_ARITHMETIC)
        if touches(op, INTEGERS_64) and not in_closed_region(op) and not of_fp64.has(op)
    ]
    constants = [
        op
        for op in ops_of(module, frozenset({"stablehlo.constant"}))
        if yields(op, INTEGERS_64) and not of_fp64.has(op)
    ]
    conversions = [
        op
        for op in ops_of(module, frozenset({"stablehlo.convert"}))
        if yields(op, INTEGERS_64)
        and element_type(op.operands[0]) not in INTEGERS_64
        and not of_fp64.has(op)
    ]
    arguments = [
        argument
        for argument in hlo.main_function(module).entry_block.arguments
        if element_type(argument) in INTEGERS_64 and not of_fp64.has_value(argument)
    ]
    for op in arithmetic:
        recompute(op, INTEGERS_64)
    for op in constants:
        _cut_constant(op)
    for op in conversions:
        _go_through(op, INTEGERS_64[element_type(op.results[0])])
    for argument in arguments:
        _cut_where_computed(argument)


def _cut_constant(op: Any) -> None:
    """Truncates 64-bit integers to 32 bits; the limits of the type, with which minima and maxima
    start, become the limits of the smaller type."""
    numbers = np.array(ir.DenseElementsAttr(op.attributes["value"]))
    narrow = np.dtype(np.uint32 if numbers.dtype.kind == "u" else np.int32)
    wide, small = np.iinfo(numbers.dtype), np.iinfo(narrow)
    limits = [numbers == wide.min, numbers == wide.max]
    cut = np.select(
        limits, [narrow.type(small.min), narrow.type(small.max)], numbers.astype(narrow)
    )
    value = np.ascontiguousarray(cut.astype(numbers.dtype))
    op.attributes["value"] = ir.DenseElementsAttr.get(value, type=op.results[0].type)


_HANDING_ON = frozenset(
    f"stablehlo.{name}" for name in (
        "all_gather", "broadcast_in_dim", "collective_permute", "concatenate", "dynamic_slice",
        "dynamic_update_slice", "gather", "pad", "reshape", "reverse", "slice", "transpose",
    )
)  # fmt: skip
"""Ops that move numbers, and only compute with indices."""
_PLACES = {"dynamic_slice": 1, "dynamic_update_slice": 2, "gather": 1}
"""Op -> position of its first operand that is an index."""


def _cut_where_computed(argument: Any) -> None:
    """Truncates 64-bit integers to 32 bits wherever they are computed with; those that are only
    moved and returned keep their bits."""
    waiting, seen = [argument], set()
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        computing = []
        for use in list(value.uses):
            user = use.owner.operation
            places = _PLACES.get(user.name.removeprefix("stablehlo."), len(user.operands))
            if user.name in _HANDING_ON and use.operand_number < places:
                waiting.append(user.results[0])
            elif user.name != "func.return":
                computing.append((user, use.operand_number))
        if computing:
            cut = _cut(value)
            for user, number in computing:
                user.operands[number] = cut


def _cut(value: Any) -> Any:
    """A value truncated to 32 bits, written right after it."""
    element = element_type(value)
    if isinstance(value.owner, ir.Block):
        place: Any = ir.InsertionPoint.at_block_begin(value.owner)
    else:
        place = after(value.owner)
    with place:
        return convert(convert(value, INTEGERS_64[element]), element)


def _go_through(op: Any, element: str) -> None:
    """Makes a conversion go by way of another type."""
    with at(op):
        through = convert(op.operands[0], element)
        op.results[0].replace_all_uses_with(convert(through, element_type(op.results[0])))
    op.erase()


def _integer_powers_in_32_bits(module: ir.Module, policy: Policy) -> None:
    powers = ops_of(module, frozenset({"stablehlo.power"}))
    for op in _without_fp64(module, [op for op in powers if touches(op, INTEGERS_64)]):
        recompute(op, INTEGERS_64)


def _without_fp64(module: ir.Module, ops: list[Any]) -> list[Any]:
    """Those of the ops whose 64-bit integers do not belong to FP64."""
    if not any(touches(op, INTEGERS_64) for op in ops):
        return ops
    of_fp64 = Fp64Integers(module)
    return [op for op in ops if not of_fp64.has(op)]


def _integer_matmuls(module: ir.Module, policy: Policy) -> None:
    native = NATIVE_INTEGERS_V1 if policy.core_version == 1 else frozenset()

    def differs(op: Any) -> bool:
        types = {element_type(value) for value in (*op.operands, *op.results)}
        if types & PACKED_INTEGERS:
            return False
        return bool(types & INTEGERS.keys()) and not types <= native

    for op in _without_fp64(module, [op for op in ops_of(module, MATMULS) if differs(op)]):
        recompute(op, INTEGERS)


def _integer_scatters(module: ir.Module, policy: Policy) -> None:
    combiners = [
        inner
        for op in ops_of(module, UPDATES)
        for inner in inner_ops(op)
        if inner.name in INTEGER_COMBINERS and touches(inner, INTEGERS)
    ]
    for inner in _without_fp64(module, combiners):
        recompute(inner, INTEGERS)


def _integer_collectives(name: str) -> Callable[[ir.Module, Policy], None]:
    def rewrite(module: ir.Module, policy: Policy) -> None:
        collectives = [
            op
            for op in ops_of(module, frozenset({f"stablehlo.{name}"}))
            if touches(op, INTEGERS) and combines_with(op, INTEGER_COMBINERS)
        ]
        for op in _without_fp64(module, collectives):
            recompute(op, INTEGERS)

    return rewrite


def _round_operands(op: Any, form: Format) -> None:
    """Casts the FP32 operands of ``op``."""
    with at(op):
        for index, operand in operand_list(op):
            if element_type(operand) == "f32":
                op.operands[index] = rounding_sites.cast(operand, form)


def _auto_cast_type(policy: Policy) -> Format:
    """The type of cast FP32 matmul operands: BF16 if it is NeuronCore-v1 that requires the cast."""
    return policy.auto_cast_type if policy.auto_cast != "none" else formats.BFLOAT16


def _cast_matmul_operands(module: ir.Module, policy: Policy) -> None:
    for op in ops_of(module, MATMULS):
        _round_operands(op, _auto_cast_type(policy))


def _cast_all(module: ir.Module, policy: Policy) -> None:
    for op in ops_of(module, ROUNDED | MATMULS | REDUCTIONS | UPDATES):
        if in_closed_region(op):
            continue
        _round_operands(op, policy.auto_cast_type)
        for result in op.results:
            if element_type(result) == "f32":
                with after(op):
                    _replace_behind(result, rounding_sites.cast(result, policy.auto_cast_type))


def _replace_behind(value: Any, replacement: Any) -> None:
    """Lets all users of ``value`` use ``replacement``, which was made from it by a chain of ops."""
    first = replacement.owner
    while first.operands[0] != value:
        first = first.operands[0].owner
    value.replace_all_uses_except(replacement, first.operation)


def _saturate_infinity(module: ir.Module, policy: Policy) -> None:
    for op in ops_of(module, MATMULS):
        with at(op):
            for index, operand in operand_list(op):
                element = element_type(operand)
                if element == "f32" or element in NARROW_FLOATS:
                    greatest = formats.format_of_element_type(element).max
                    op.operands[index] = clamp(operand, -greatest, greatest)


def _recompute_all(
    names: frozenset[str], wanted: Callable[[Any], bool]
) -> Callable[[ir.Module, Policy], None]:
    """Computes these ops in FP32 where they touch narrow floats; results are rounded once."""

    def rewrite(module: ir.Module, policy: Policy) -> None:
        for op in ops_of(module, names):
            if touches(op, NARROW_FLOATS) and wanted(op):
                recompute(op, NARROW_FLOATS)

    return rewrite


def _reductions(module: ir.Module, policy: Policy) -> None:
    for op in ops_of(module, REDUCTIONS):
        narrow = [element_type(result) for result in op.results]
        if touches(op, NARROW_FLOATS) and _sums(op):
            twin = recompute(op, NARROW_FLOATS)
            if not policy.mixed_precision_accumulation:
                _round_partial_sums(twin, narrow)


def _round_partial_sums(op: Any, types: list[str]) -> None:
    """Rounds what the region of a reduction returns to these element types."""
    terminator = inner_ops(op)[-1]
    with at(terminator):
        for index, element in enumerate(types):
            if element in NARROW_FLOATS:
                partial = convert(terminator.operands[index], element)
                terminator.operands[index] = convert(partial, "f32")


def _sums(op: Any) -> bool:
    return combines_with(op, ROUNDED)


def _conversions_through_fp32(module: ir.Module, policy: Policy) -> None:
    for op in ops_of(module, frozenset({"stablehlo.convert"})):
        if yields(op, NARROW_FLOATS) and element_type(op.operands[0]) not in ("f32", "i1"):
            _go_through(op, "f32")


def _separate_roundings(module: ir.Module, policy: Policy) -> None:
    """Prevents XLA:CPU's code generator from fusing a product and a sum into one rounding, by a
    selection of NaN for NaN, through which it does not look."""
    for op in ops_of(module, frozenset({"stablehlo.multiply"})):
        product = op.results[0]
        if element_type(product) != "f32" or in_closed_region(op) or not feeds(product, SUMS):
            continue
        with after(op):
            equal = stablehlo.ComparisonDirectionAttr.get("EQ")
            is_number = stablehlo.CompareOp(product, product, equal).result
            nan = filled(product, "f32", math.nan)
            same = stablehlo.SelectOp(is_number, product, nan).result
            own = [is_number.owner.operation, same.owner.operation]
            product.replace_all_uses_except(same, own)


def _e4m3fn_as_e4m3(module: ir.Module, policy: Policy) -> None:
    for op in ops_of(module, frozenset({"stablehlo.convert"})):
        operand, result = op.operands[0], op.results[0]
        with at(op):
            if element_type(operand) == "f8E4M3FN":
                operand = _bits_as(operand, "f8E4M3")
            if element_type(result) == "f8E4M3FN":
                new = _bits_as(convert(operand, "f8E4M3"), "f8E4M3FN")
            else:
                new = convert(operand, element_type(result))
        result.replace_all_uses_with(new)
        op.erase()


def _bits_as(value: Any, element: str) -> Any:
    return stablehlo.BitcastConvertOp(with_element_type(value.type, element), value).result


def _since_v2(policy: Policy) -> bool:
    return policy.core_version >= 2


def _always(policy: Policy) -> bool:
    return True


def _downcast(which: str) -> Callable[[Policy], bool]:
    return lambda policy: which in policy.integer_downcasts


_CLI = "Neuron docs, neuronx-cc command line reference"
_ISA = "NKI ISA reference"

DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        "int64",
        "64-bit integers are computed in 32 bits, except those that are part of FP64",
        "--native-int64",
        _CLI,
        lambda policy: not policy.native_int64,
        _integers_in_32_bits,
    ),
    Deviation(
        "integer_power",
        "powers of 64-bit integers are computed in 32 bits",
        "--implicit-integer-downcast=pow",
        _CLI,
        _downcast("pow"),
        _integer_powers_in_32_bits,
    ),
    Deviation(
        "integer_dot",
        "matmuls of integers go through FP32: exact to 2^24, saturating in 8 and 16 bits",
        "--implicit-integer-downcast=dot",
        f"{_CLI}; NKI release notes (FP32 to integers saturates)",
        _downcast("dot"),
        _integer_matmuls,
    ),
    Deviation(
        "integer_scatter",
        "scatters that compute on integers go through FP32",
        "--implicit-integer-downcast=scatter",
        _CLI,
        _downcast("scatter"),
        _integer_scatters,
    ),
    Deviation(
        "integer_all_reduce",
        "all-reduces of integers go through FP32",
        "--implicit-integer-downcast=all_reduce",
        _CLI,
        _downcast("all_reduce"),
        _integer_collectives("all_reduce"),
    ),
    Deviation(
        "integer_reduce_scatter",
        "reduce-scatters of integers go through FP32",
        "--implicit-integer-downcast=reduce_scatter",
        _CLI,
        _downcast("reduce_scatter"),
        _integer_collectives("reduce_scatter"),
    ),
    Deviation(
        "auto_cast_matmult",
        "FP32 operands of matmuls are cast; to BF16 on NeuronCore-v1 in any case",
        "--auto-cast, --auto-cast-type",
        f"{_CLI}; Neuron docs, NeuronCore-v1 (no FP32 matmul)",
        lambda policy: policy.auto_cast == "matmult" or policy.core_version == 1,
        _cast_matmul_operands,
    ),
    Deviation(
        "auto_cast_all",
        "all FP32 operations take and return values of the narrower type",
        "--auto-cast=all, --auto-cast-type",
        _CLI,
        lambda policy: policy.auto_cast == "all",
        _cast_all,
    ),
    Deviation(
        "saturate_infinity",
        "infinite operands of matmuls become the largest finite value (trn1)",
        "--enable-saturate-infinity",
        _CLI,
        lambda policy: policy.saturate_infinity and policy.chip == "trainium1",
        _saturate_infinity,
    ),
    Deviation(
        "matmul_accumulation",
        "matmuls multiply and add in FP32; narrow results are rounded once",
        "",
        f"{_ISA}, nc_matmul (FP32 accumulation in PSUM)",
        _always,
        _recompute_all(MATMULS, lambda op: True),
    ),
    Deviation(
        "collective_accumulation",
        "collectives reduce in FP32",
        "",
        "Neuron docs, collective communication; NKI ISA reference, dma_compute",
        _always,
        _recompute_all(COLLECTIVES, _sums),
    ),
    Deviation(
        "reduction_accumulation",
        "reductions of narrow floats accumulate in FP32, or in their own type if the flag says so",
        "--disable-mixed-precision-accumulation",
        _CLI,
        _always,
        _reductions,
    ),
    Deviation(
        "scatter_accumulation",
        "scatters that add narrow floats accumulate in FP32",
        "",
        f"{_ISA}, dma_compute",
        _always,
        _recompute_all(UPDATES, _sums),
    ),
    Deviation(
        "activation_functions",
        "logistic, GELU and its gradient are evaluated in FP32 for narrow floats and rounded once",
        "",
        f"{_ISA}, activation",
        _since_v2,
        activations.compose,
    ),
    Deviation(
        "narrow_arithmetic",
        "arithmetic on narrow floats is done in FP32 and rounded per op",
        "",
        f"{_ISA}, data types (inputs are cast to FP32, results to the output type)",
        _since_v2,
        _recompute_all(ROUNDED, lambda op: yields(op, NARROW_FLOATS)),
    ),
    Deviation(
        "separate_rounding",
        "an FP32 product is rounded before it is added to something",
        "",
        f"{_ISA}, data types (every ALU operation gives FP32)",
        _always,
        _separate_roundings,
    ),
    Deviation(
        "casts_through_fp32",
        "casts go through FP32; values beyond the largest become infinity",
        "",
        f"{_ISA}, data types",
        _always,
        _conversions_through_fp32,
    ),
    Deviation(
        "fp8_e4m3fn_as_e4m3",
        "the bits of float8_e4m3fn are read and written as float8_e4m3 (largest value 240)",
        "--experimental-unsafe-fp8e4m3fn-as-fp8e4m3",
        "Neuron docs, error code EVRF051",
        lambda policy: policy.fp8_e4m3fn_as_e4m3 and policy.core_version < 4,
        _e4m3fn_as_e4m3,
    ),
    Deviation(
        "flush_subnormals",
        "subnormal results become zero (undocumented, so off by default)",
        "NEURONJAX_FLUSH_SUBNORMALS",
        "no public document; a switch",
        lambda policy: policy.flush_subnormals,
        rounding_sites.flush_results,
    ),
    Deviation(
        "stochastic_rounding",
        "FP32 is cast to narrower floats stochastically",
        "NEURON_RT_STOCHASTIC_ROUNDING_EN, NEURON_RT_STOCHASTIC_ROUNDING_SEED",
        "Neuron docs, rounding modes",
        lambda policy: policy.rounds_stochastically,
        rounding_sites.make_stochastic,
    ),
)
"""All deviations, in the order in which they are applied."""
