"""Element types that a generation of the chip, or the compiler, does not support."""

from __future__ import annotations

from functools import partial

from neuronjax.hlo.custom_calls import custom_call_target
from neuronjax.legalize.rules.operators import KNOWN_ISSUES
from neuronjax.legalize.rules.rule import NEVER, NEWEST_CORE, Rule, Site, stablehlo

_ERRORS = "Neuron compiler error codes"
_TRN3 = 4
"""The NeuronCore generation that has the OCP formats."""

COMPLEX64_OPS = stablehlo(
    "add", "subtract", "multiply", "divide", "compare", "abs", "exponential", "sine", "cosine",
    "reshape", "complex", "real", "imag", "dot_general", "broadcast_in_dim", "iota", "negate",
    "power", "log", "log_plus_one", "exponential_minus_one", "sqrt", "rsqrt", "tan", "tanh",
    "logistic", "sign", "select", "transpose", "reverse", "slice", "dynamic_slice",
    "dynamic_update_slice", "concatenate", "pad", "dot",
    "constant", "return", "optimization_barrier",
)  # fmt: skip
"""Ops that SDK 2.32 supports on complex64 (compiler release notes), and ops that only move data."""


def _types_text(site: Site, names: frozenset[str]) -> str:
    return f"{site.op.name} has {', '.join(sorted(site.elements & names))}"


def _complex(site: Site) -> str | None:
    newest = site.policy.sdk >= (2, 32) and "complex<f64>" not in site.elements
    if newest and site.op.name in COMPLEX64_OPS:
        return None
    return _types_text(site, COMPLEX)


def _e4m3fn(site: Site) -> str | None:
    if site.policy.fp8_e4m3fn_as_e4m3 or custom_call_target(site.op) == "QuantizeMX":
        return None
    return _types_text(site, E4M3FN)


def _large_uint64(site: Site) -> str | None:
    if site.policy.native_int64:
        return None
    values = site.constant(site.op.results[0])
    if values is None or values.size == 0 or int(values.max()) < 1 << 32:
        return None
    return f"the constant is {int(values.max())}"


COMPLEX = frozenset({"complex<f32>", "complex<f64>"})
FNUZ = frozenset({"f8E4M3FNUZ", "f8E4M3B11FNUZ", "f8E5M2FNUZ"})
E4M3FN = frozenset({"f8E4M3FN"})
E4M3 = frozenset({"f8E4M3"})
NO_CODE = frozenset({
    "f64", "f4E2M1FN", "f6E2M3FN", "f6E3M2FN", "i2", "i4", "ui2", "ui4",
})  # fmt: skip


_narrow = partial(
    Rule,
    code="ESPP047",
    message="The compiler found usage of an unsupported 8-bit floating-point data type",
)

RULES = (
    Rule(
        code="EVRF004",
        what="complex numbers",
        elements=COMPLEX,
        check=_complex,
        message="Complex data types are not supported on the Neuron device",
        remedy="Keep real and imaginary parts in two arrays.",
        source=f"{_ERRORS}, NCC_EVRF004; compiler release notes 2.32 (30 complex64 operations)",
    ),
    Rule(
        code="ESPP004",
        what="types without code generation",
        elements=NO_CODE,
        check=lambda site: _types_text(site, NO_CODE),
        message="The compiler encountered a data type that is not supported for code generation",
        remedy=(
            "Use a supported type: float32 in place of float64 (turn jax_enable_x64 off), int8 in "
            "place of int4, float8 or bfloat16 in place of float4."
        ),
        source=f"{_ERRORS}, NCC_ESPP004",
    ),
    Rule(
        code="EVRF005",
        also=("ESPP047",),
        what="FP8 types of the FNUZ family",
        elements=FNUZ,
        check=lambda site: _types_text(site, FNUZ),
        message=(
            "The compiler found usage of F8E4M3FNUZ, F8E4M3B11FNUZ, or F8E5M2FNUZ data type which "
            "is not supported"
        ),
        remedy="Use float8_e4m3 or float8_e5m2 (float8_e4m3fn on Trn3).",
        source=f"{_ERRORS}, NCC_EVRF005 and NCC_ESPP047",
    ),
    _narrow(
        what="FP8 types other than e4m3 and e5m2",
        elements=frozenset({"f8E3M4"}),
        remedy="Use float8_e4m3 or float8_e5m2.",
        source=f"{_ERRORS}, NCC_ESPP047; {KNOWN_ISSUES}",
    ),
    _narrow(
        what="scales of MX blocks (float8_e8m0fnu) before Trn3",
        elements=frozenset({"f8E8M0FNU"}),
        cores=(1, _TRN3 - 1),
        remedy="Keep the scales as float32, or choose a Trn3 target.",
        source=f"{_ERRORS}, NCC_ESPP047; {KNOWN_ISSUES}",
    ),
    _narrow(
        what="FP8 on Inf1",
        elements=frozenset({"f8E4M3", "f8E5M2"}),
        cores=(1, 1),
        remedy="Use bfloat16 or float16.",
        source="Neuron data types, Inf1 (NeuronCore v1)",
    ),
    _narrow(
        what="float8_e4m3fn before Trn3, before SDK 2.31",
        elements=E4M3FN,
        check=_e4m3fn,
        cores=(1, _TRN3 - 1),
        sdks=((0,), (2, 31)),
        remedy="Use float8_e4m3, whose largest value is 240.",
        source=f"{_ERRORS}, NCC_ESPP047 (its example is float8_e4m3fn)",
    ),
    Rule(
        code="EVRF051",
        what="float8_e4m3fn before Trn3",
        elements=E4M3FN,
        check=_e4m3fn,
        cores=(1, _TRN3 - 1),
        sdks=((2, 31), NEVER),
        message="Data type F8E4M3FN is not supported on TRN1/TRN2",
        remedy=(
            "Use float8_e4m3 (largest value 240), choose a Trn3 target, or set NEURON_CC_FLAGS="
            "--experimental-unsafe-fp8e4m3fn-as-fp8e4m3."
        ),
        source=f"{_ERRORS}, NCC_EVRF051",
    ),
    Rule(
        code="EVRF052",
        what="float8_e4m3 after Trn3",
        elements=E4M3,
        cores=(_TRN3 + 1, NEWEST_CORE),
        message="Data type F8E4M3 is not supported on hardware newer than Trn3",
        remedy="Use float8_e4m3fn.",
        source=f"{_ERRORS}, NCC_EVRF052",
    ),
    Rule(
        code="ESFH002",
        what="uint64 constants beyond 32 bits",
        ops=stablehlo("constant"),
        elements=frozenset({"ui64"}),
        check=_large_uint64,
        message=(
            "The compiler encountered a unsigned 64-bit integer constant with a value that cannot "
            "be safely converted to 32-bit representation"
        ),
        remedy="Use uint32 for constants, or NEURON_CC_FLAGS=--native-int64=enabled on Trn2.",
        source=f"{_ERRORS}, NCC_ESFH002",
    ),
)
