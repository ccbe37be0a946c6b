"""What the real compiler would refuse: one row per rule, matched against every op of a program.

Codes are those of the Neuron compiler's error pages. Rules whose limitation is known from the JAX
NeuronX notes alone have the code of the page that the compiler shows for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from neuronjax.hlo.custom_calls import CALLBACK_TARGETS, custom_call_target

KNOWN_TARGETS = frozenset({
    "AwsNeuronErf", "AwsNeuronGelu", "AwsNeuronGeluApprxTanh", "AwsNeuronGeluBackward",
    "AwsNeuronSilu", "AwsNeuronSiluBackward", "AwsNeuronRmsNorm", "AwsNeuronSoftmax",
    "AwsNeuronSoftmaxBackward", "AwsNeuronCollectiveMatmul", "AwsNeuronIntMatmult",
    "AwsNeuronArgMax", "AwsNeuronArgMin", "AwsNeuronTopK", "AwsNeuronDropoutMaskV1",
    "AwsNeuronCustomNativeKernel", "AwsNeuronCustomOp", "AwsNeuronDevicePrint", "ResizeNearest",
    "ResizeBilinear", "ResizeNearestGrad", "AwsNeuronLNCShardingConstraint",
    "AwsNeuronTransferWithStaticRing", "AwsNeuronModuleMarkerStart-Forward",
    "AwsNeuronModuleMarkerEnd-Forward", "AwsNeuronModuleMarkerStart-Backward",
    "AwsNeuronModuleMarkerEnd-Backward", "NeuronBoundaryMarker-Start", "NeuronBoundaryMarker-End",
    "QuantizeMX", "ScaledMatmul", "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape",
})  # fmt: skip
"""Custom calls the compiler recognises (page of EVRF015), and partitioning marks."""

_LINEAR_ALGEBRA_PREFIXES = ("lapack_", "ducc_fft", "Qr", "Eigh", "ProductOfElementaryHouseholder")


@dataclass(frozen=True)
class Rule:
    """One thing that is refused."""

    code: str
    what: str
    matches: Callable[[Any], bool]
    remedy: str


def _named(*names: str) -> Callable[[Any], bool]:
    full = frozenset(f"stablehlo.{name}" for name in names)
    return lambda op: op.name in full


def _element_type(*texts: str) -> Callable[[Any], bool]:
    def matches(op: Any) -> bool:
        types = (str(result.type) for result in op.results)
        return any(text in type_ for type_ in types for text in texts)

    return matches


def _target(predicate: Callable[[str], bool]) -> Callable[[Any], bool]:
    def matches(op: Any) -> bool:
        target = custom_call_target(op)
        return target is not None and predicate(target)

    return matches


def _unknown_target(target: str) -> bool:
    known = KNOWN_TARGETS | CALLBACK_TARGETS
    return target not in known and not target.startswith(_LINEAR_ALGEBRA_PREFIXES)


def _not_default_rng(op: Any) -> bool:
    if op.name != "stablehlo.rng_bit_generator":
        return False
    return "DEFAULT" not in str(op.attributes["rng_algorithm"])


def _variadic_reduce(op: Any) -> bool:
    return op.name == "stablehlo.reduce" and len(op.results) > 1


RULES: tuple[Rule, ...] = (
    Rule(
        "EVRF001",
        "linear algebra (cholesky, triangular solve, LAPACK routines)",
        lambda op: (
            _named("cholesky", "triangular_solve")(op)
            or _target(lambda t: t.startswith(_LINEAR_ALGEBRA_PREFIXES))(op)
        ),
        "compute it on the host, with jax.default_device(jax.devices('cpu')[0])",
    ),
    Rule(
        "EVRF001", "FFT", _named("fft"), "compute it on the host, or as a matmul with a DFT matrix"
    ),
    Rule(
        "EVRF004",
        "complex numbers",
        _element_type("complex<"),
        "keep real and imaginary parts in two arrays",
    ),
    Rule(
        "EVRF005",
        "FP8 types of the FNUZ family",
        _element_type("f8E4M3FNUZ", "f8E4M3B11FNUZ", "f8E5M2FNUZ"),
        "use float8_e4m3 or float8_e5m2 (float8_e4m3fn on Trn3)",
    ),
    Rule(
        "EVRF006",
        "a random bit generator other than RNG_DEFAULT",
        _not_default_rng,
        "set jax_default_prng_impl=rbg",
    ),
    Rule(
        "EVRF015",
        "host callbacks (jax.debug, pure_callback, io_callback)",
        _target(lambda t: t in CALLBACK_TARGETS),
        "return the values instead, and look at them on the host",
    ),
    Rule(
        "EVRF015",
        "a custom call the compiler does not know",
        _target(_unknown_target),
        "express it in JAX, or as an NKI kernel",
    ),
    Rule(
        "EVRF001",
        "lax.cond and lax.switch",
        _named("case", "if"),
        "compute both branches and select with jnp.where",
    ),
    Rule(
        "EVRF001",
        "reduce_precision",
        _named("reduce_precision"),
        "cast to the narrow type and back",
    ),
    Rule(
        "EVRF001",
        "reductions of several operands",
        _variadic_reduce,
        "reduce each operand on its own, or use AwsNeuronArgMax/ArgMin",
    ),
    Rule("EVRF001", "64-bit floating point", _element_type("xf64>", "<f64>"), "use float32"),
)
