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

from neuronjax import formats
from neuronjax.formats import Format
from neuronjax.jaxlib_api.mlir import ir, stablehlo
from neuronjax.legalize import activations, integers, rounding_sites
from neuronjax.legalize.emit import (
    after,
    at,
    clamp,
    convert,
    element_type,
    filled,
    go_through,
    ops_of,
    recompute,
    with_element_type,
)
from neuronjax.legalize.op_sets import (
    COLLECTIVES,
    MATMULS,
    NARROW_FLOATS,
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


def _round_operands(op: ir.Operation, form: Format) -> None:
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


def _replace_behind(value: ir.Value, replacement: ir.Value) -> None:
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
    names: frozenset[str], wanted: Callable[[ir.Operation], bool]
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


def _round_partial_sums(op: ir.Operation, types: list[str]) -> None:
    """Rounds what the region of a reduction returns to these element types."""
    terminator = inner_ops(op)[-1]
    with at(terminator):
        for index, element in enumerate(types):
            if element in NARROW_FLOATS:
                partial = convert(terminator.operands[index], element)
                terminator.operands[index] = convert(partial, "f32")


def _sums(op: ir.Operation) -> bool:
    return combines_with(op, ROUNDED)


def _conversions_through_fp32(module: ir.Module, policy: Policy) -> None:
    for op in ops_of(module, frozenset({"stablehlo.convert"})):
        if yields(op, NARROW_FLOATS) and element_type(op.operands[0]) not in ("f32", "i1"):
            go_through(op, "f32")


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


def _bits_as(value: ir.Value, element: str) -> ir.Value:
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
        integers.in_32_bits,
    ),
    Deviation(
        "integer_power",
        "powers of 64-bit integers are computed in 32 bits",
        "--implicit-integer-downcast=pow",
        _CLI,
        _downcast("pow"),
        integers.powers_in_32_bits,
    ),
    Deviation(
        "integer_dot",
        "matmuls of integers go through FP32: exact to 2^24, saturating in 8 and 16 bits",
        "--implicit-integer-downcast=dot",
        f"{_CLI}; NKI release notes (FP32 to integers saturates)",
        _downcast("dot"),
        integers.matmuls,
    ),
    Deviation(
        "integer_scatter",
        "scatters that compute on integers go through FP32",
        "--implicit-integer-downcast=scatter",
        _CLI,
        _downcast("scatter"),
        integers.scatters,
    ),
    Deviation(
        "integer_all_reduce",
        "all-reduces of integers go through FP32",
        "--implicit-integer-downcast=all_reduce",
        _CLI,
        _downcast("all_reduce"),
        integers.collectives("all_reduce"),
    ),
    Deviation(
        "integer_reduce_scatter",
        "reduce-scatters of integers go through FP32",
        "--implicit-integer-downcast=reduce_scatter",
        _CLI,
        _downcast("reduce_scatter"),
        integers.collectives("reduce_scatter"),
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
