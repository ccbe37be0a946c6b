"""Custom calls: the compiler supports a list of targets."""

from __future__ import annotations

from neuronjax.hlo.custom_calls import CALLBACK_TARGETS, custom_call_target
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.rules.operators import KNOWN_ISSUES, LINEAR_ALGEBRA_PREFIXES
from neuronjax.legalize.rules.rule import Rule, Site, stablehlo

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
    "QuantizeMX", "ScaledMatmul", "__op$block_scaled_dot",
})  # fmt: skip
"""Targets the compiler recognises (pages of NCC_EVRF015, NCC_EVRF036 and NCC_EVRF043)."""

_MARKS = frozenset({
    "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement",
    "MoveToHost", "MoveToDevice", "LayoutConstraint", "TopK",
})  # fmt: skip
"""Targets that XLA itself removes or turns into operators before the compiler sees them."""
_ENCODINGS = ("mhlo.", "chlo.", "xla.sdy.")
"""Prefixes of targets that encode operators of other dialects."""

TOPK_TARGETS = frozenset({"AwsNeuronTopK", "TopK", "mhlo.topk"})
_TOPK_OPS = frozenset({"mhlo.topk", "chlo.top_k"})
MAX_TOPK = 16384


def _unknown(site: Site) -> str | None:
    target = str(custom_call_target(site.op))
    known = target in KNOWN_TARGETS | _MARKS | CALLBACK_TARGETS
    if known or target.startswith(_ENCODINGS + LINEAR_ALGEBRA_PREFIXES):
        return None
    return f"the target is {target!r}"


def _callback(site: Site) -> str | None:
    target = custom_call_target(site.op)
    return target if target in CALLBACK_TARGETS else None


def _is_topk(site: Site) -> bool:
    target = custom_call_target(site.op)
    if target is not None:
        return target in TOPK_TARGETS
    return site.op.name in _TOPK_OPS


def _topk_on_integers(site: Site) -> str | None:
    if not _is_topk(site):
        return None
    types = site.program.elements(list(site.op.operands)[:1]) & {"i32", "i64", "ui32", "ui64"}
    return f"the input is {min(types)}" if types else None


def _topk_too_long(site: Site) -> str | None:
    if not _is_topk(site):
        return None
    tensors = [v.type for v in site.op.results if isinstance(v.type, ir.RankedTensorType)]
    k = max((type_.shape[-1] for type_ in tensors if type_.rank), default=1)
    return f"Found k={k}" if k > MAX_TOPK else None


_TOPK = stablehlo("custom_call") | _TOPK_OPS

RULES = (
    Rule(
        code="EVRF015",
        also=("EHCA005",),
        what="custom calls the compiler does not know",
        ops=stablehlo("custom_call"),
        check=_unknown,
        message=(
            "The compiler encountered a custom call instruction with a target name that is not "
            "recognized"
        ),
        remedy="Write it in JAX, or as an NKI kernel.",
        source="Neuron compiler error codes, NCC_EVRF015 and NCC_EHCA005",
    ),
    Rule(
        code="EVRF015",
        also=("EHCA005",),
        what="host callbacks (jax.debug, pure_callback, io_callback)",
        ops=stablehlo("custom_call"),
        check=_callback,
        message="Host callbacks are not supported",
        remedy="Return the values instead, and inspect them on the host.",
        source=f"{KNOWN_ISSUES}; NCC_EVRF015",
    ),
    Rule(
        code="EVRF013",
        what="top-k of integers",
        ops=_TOPK,
        check=_topk_on_integers,
        message="TopK does not support int32 or int64 input tensors",
        remedy="Convert to float32 first (exact up to 2^24).",
        source="Neuron compiler error codes, NCC_EVRF013",
    ),
    Rule(
        code="EVRF014",
        what="top-k with k beyond 16384",
        ops=_TOPK,
        check=_topk_too_long,
        message=f"TopK custom operation does not support k values larger than {MAX_TOPK}",
        remedy="Take the top k of each of several pieces, then the top k of those.",
        source="compiler message, public issue aws-neuron/aws-neuron-sdk#1339",
    ),
)
