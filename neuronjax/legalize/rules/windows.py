"""Convolutions, reduce-windows and shifts with attributes that the compiler does not support."""

from __future__ import annotations

from neuronjax.hlo.constants import numbers
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.rules.rule import Check, Rule, Site, stablehlo

_ERRORS = "Neuron compiler error codes"


def _exceeds_one(op: ir.Operation, *names: str) -> bool:
    return all(any(number > 1 for number in numbers(op, name)) for name in names)


def _all_above_one(first: str, second: str) -> Check:
    def check(site: Site) -> str | None:
        if not _exceeds_one(site.op, first, second):
            return None
        return ", ".join(f"{name} = {numbers(site.op, name)}" for name in (first, second))

    return check


def _dilated(name: str) -> Check:
    def check(site: Site) -> str | None:
        is_dilated = _exceeds_one(site.op, name)
        return f"{name} = {numbers(site.op, name)}" if is_dilated else None

    return check


def _operand_count(site: Site) -> str | None:
    count = len(site.op.operands)
    return None if count == 2 else f"it has {count} operands"


def _shifted_type(site: Site) -> str | None:
    (element,) = site.program.elements([site.op.operands[0]])
    return None if element in ("i32", "ui32") else f"the input is {element}"


RULES = (
    Rule(
        code="EVRF010",
        what="convolutions with input and kernel dilation",
        ops=stablehlo("convolution"),
        check=_all_above_one("lhs_dilation", "rhs_dilation"),
        message=(
            "The compiler encountered simultaneous use of input and kernel dilation, which is not "
            "supported"
        ),
        remedy="Dilate only one of them; put the other's zeros in by hand (jax.lax.pad).",
        source=f"{_ERRORS}, NCC_EVRF010",
    ),
    Rule(
        code="EVRF011",
        what="strided convolutions of dilated input",
        ops=stablehlo("convolution"),
        check=_all_above_one("lhs_dilation", "window_strides"),
        message=(
            "The compiler encountered strided convolution combined with dilated input, which is "
            "not supported"
        ),
        remedy="Remove stride or input dilation, or apply upsampling and downsampling separately.",
        source=f"{_ERRORS}, NCC_EVRF011",
    ),
    Rule(
        code="EVRF017",
        what="reduce-windows with base dilation",
        ops=stablehlo("reduce_window"),
        check=_dilated("base_dilations"),
        message=(
            "The compiler encountered a reduce-window operation with base dilation (input "
            "dilation) greater than 1, which is not supported"
        ),
        remedy="Put the zeros in by hand (jax.lax.pad with interior padding).",
        source=f"{_ERRORS}, NCC_EVRF017",
    ),
    Rule(
        code="EVRF018",
        what="reduce-windows with window dilation",
        ops=stablehlo("reduce_window"),
        check=_dilated("window_dilations"),
        message=(
            "The compiler encountered a reduce-window operation with window dilation greater than "
            "1, which is not supported"
        ),
        remedy="Reduce shifted strided slices instead.",
        source=f"{_ERRORS}, NCC_EVRF018",
    ),
    Rule(
        code="EVRF019",
        what="reduce-windows of several operands",
        ops=stablehlo("reduce_window"),
        check=_operand_count,
        message=(
            "The compiler encountered a reduce-window operation with more or less than 2 operands"
        ),
        remedy="Split it into reduce-windows of one array and one initial value each.",
        source=f"{_ERRORS}, NCC_EVRF019",
    ),
    Rule(
        code="EVRF022",
        what="arithmetic right shifts of types other than 32 bits",
        ops=stablehlo("shift_right_arithmetic"),
        check=_shifted_type,
        message="Shift-right-arithmetic operation on non 32-bit inputs is not supported",
        remedy="Convert the first argument to int32 or uint32.",
        source=f"{_ERRORS}, NCC_EVRF022",
    ),
)
