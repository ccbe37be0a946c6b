"""Operators without an implementation on the device."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp

from neuronjax.hlo.calls import terminator
from neuronjax.hlo.constants import direction
from neuronjax.hlo.custom_calls import custom_call_target
from neuronjax.hlo.module import ELEMENT_TYPES
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.rules.rule import DYNAMIC, Rule, Severity, Site, stablehlo

MESSAGE = "An unsupported operator was used"
KNOWN_ISSUES = "JAX NeuronX known issues"
_PAGES = "Neuron compiler error codes, NCC_EVRF001 and NCC_EUOC002"

LINEAR_ALGEBRA_PREFIXES = ("lapack_", "Qr", "Eigh", "ProductOfElementaryHouseholder", "ducc_fft")
"""Prefixes of the custom calls with which JAX runs linear algebra and FFTs on a host."""


def _is_lapack(site: Site) -> str | None:
    target = custom_call_target(site.op)
    if target is None:  # the op itself is linear algebra
        return ""
    return target if target.startswith(LINEAR_ALGEBRA_PREFIXES) else None


def _dynamic_shape(site: Site) -> str:
    values = [*site.op.results, *site.op.operands]
    shapes = [str(value.type) for value in values if DYNAMIC in site.program.elements([value])]
    return f"instruction {site.op.name!r} has shape {shapes[0]!r}"


def _rounding(site: Site) -> str | None:
    """JAX marks what recomputation keeps with a reduction to the precision that a value has, which
    XLA removes."""
    element_type = str(ir.RankedTensorType(site.op.operands[0].type).element_type)
    kind = jnp.finfo(ELEMENT_TYPES[element_type])
    asked = tuple(site.op.attributes[name].value for name in ("exponent_bits", "mantissa_bits"))
    if asked == (kind.nexp, kind.nmant):
        return None
    return f"{element_type} to {asked[0]} exponent and {asked[1]} mantissa bits"


def _several_operands(site: Site) -> str | None:
    count = len(site.op.results)
    if count == 1 or _is_arg_reduction(site.op):
        return None
    return f"{count} operands are reduced together"


def _is_arg_reduction(op: ir.Operation) -> bool:
    """Whether a reduction is that of argmax or argmin, which become AwsNeuronArgMax and -ArgMin.

    Both results select between the running pair and the next one, depending on a comparison of the
    values.
    """
    block = op.regions[0].blocks[0]
    arguments = list(block.arguments)
    if len(arguments) != 4:
        return False
    pairs = [{0, 2}, {1, 3}]
    for result, pair in zip(terminator(op).operands, pairs, strict=True):
        if isinstance(result, ir.BlockArgument) or result.owner.name != "stablehlo.select":
            return False
        chosen = list(result.owner.operands)[1:]
        if {_number(value) for value in chosen} != pair:
            return False
    return any(
        inner.operation.name == "stablehlo.compare"
        and direction(inner.operation) in ("GT", "GE", "LT", "LE")
        and {_number(value) for value in inner.operation.operands} == {0, 2}
        for inner in block.operations
    )


def _number(value: ir.Value) -> int | None:
    return value.arg_number if isinstance(value, ir.BlockArgument) else None


def _comparator(site: Site) -> str | None:
    value, _ = site.origin(terminator(site.op).operands[0])
    if not isinstance(value, ir.BlockArgument):
        op = value.owner
        if op.name == "stablehlo.compare" and direction(op) in ("LE", "GE", "LT", "GT"):
            return None
    return "the comparator is more than one comparison LE, GE, LT or GT"


_unsupported = partial(Rule, code="EVRF001", message=MESSAGE)

RULES = (
    Rule(
        code="EMOD025",
        what="dynamic shapes",
        elements=frozenset({DYNAMIC}),
        check=_dynamic_shape,
        message=(
            "Dynamic shape is not supported. The Neuron compiler requires all tensor dimensions to "
            "be statically sized"
        ),
        remedy="Give every dimension a size; pad inputs of varying length to a few fixed lengths.",
        source="Neuron compiler error codes, NCC_EMOD025",
    ),
    _unsupported(
        also=("EUOC002",),
        what="linear algebra (cholesky, triangular solve, LAPACK routines)",
        ops=stablehlo("cholesky", "triangular_solve", "custom_call"),
        check=_is_lapack,
        remedy=(
            "Compute it on the host (jax.default_device(jax.devices('cpu')[0])), or from matrix "
            "products."
        ),
        source=_PAGES,
    ),
    _unsupported(
        what="FFT",
        ops=stablehlo("fft"),
        remedy="Compute it on the host, or as a matrix product with a DFT matrix.",
        source=_PAGES,
    ),
    _unsupported(
        what="infeed, outfeed and host transfers",
        ops=stablehlo("infeed", "outfeed", "send", "recv"),
        remedy="Pass the data as arguments and results of the program.",
        source=KNOWN_ISSUES,
    ),
    _unsupported(
        what="reduce_precision",
        ops=stablehlo("reduce_precision"),
        check=_rounding,
        remedy="Convert to the narrow type and back (astype).",
        source=KNOWN_ISSUES,
    ),
    _unsupported(
        what="reductions of several operands",
        ops=stablehlo("reduce"),
        check=_several_operands,
        remedy="Reduce each operand on its own; argmax and argmin are supported.",
        source=f"{KNOWN_ISSUES} (variadic reductions); NCC_EVRF015 lists AwsNeuronArgMax, -ArgMin",
    ),
    _unsupported(
        what="sort comparators other than LE, GE, LT and GT",
        ops=stablehlo("sort"),
        check=_comparator,
        remedy="Sort by one key; for several keys, sort stably by the last key first.",
        source=KNOWN_ISSUES,
    ),
    Rule(
        code="EVRF029",
        what="sort on Trn2 and later",
        ops=stablehlo("sort"),
        severity=Severity.WARNING,
        cores=(3, 1 << 30),
        message="Operation sort is not supported on this target by some compiler releases",
        remedy="Use jax.lax.top_k on the last dimension, or sort on the host.",
        source="reports on GitHub; JAX NeuronX known issues count sort as supported",
    ),
)
