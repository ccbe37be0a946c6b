"""Replaces custom calls of the Neuron compiler that are pure mathematics by their meaning.

XLA knows none of them; ``native_kernels`` has those of NKI. A call with a meaning becomes a call of
a private function, which all calls of the same types and configuration share; identities are
removed; all others are refused with the reason. Source of the names: error page EVRF015, and
EVRF036 to EVRF058 for the MX calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from neuronjax.errors import UnsupportedProgramError
from neuronjax.hlo.custom_calls import custom_call_target, custom_calls
from neuronjax.hlo.location import source_line
from neuronjax.hlo.module import replicas_of, tensor_spec
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize import call as calls
from neuronjax.legalize import collective_matmul, meanings, merge, mx_calls, resize
from neuronjax.legalize.call import Call, Function
from neuronjax.legalize.policy import Policy

SEMANTICS: Mapping[str, Callable[[Call], Function]] = {
    "AwsNeuronErf": meanings.erf,
    "AwsNeuronGelu": meanings.gelu,
    "AwsNeuronGeluApprxTanh": meanings.gelu_tanh,
    "AwsNeuronGeluBackward": meanings.gelu_backward,
    "AwsNeuronSilu": meanings.silu,
    "AwsNeuronSiluBackward": meanings.silu_backward,
    "AwsNeuronRmsNorm": meanings.rms_norm,
    "AwsNeuronSoftmax": meanings.softmax,
    "AwsNeuronSoftmaxBackward": meanings.softmax_backward,
    "AwsNeuronArgMax": meanings.arg_max,
    "AwsNeuronArgMin": meanings.arg_min,
    "AwsNeuronTopK": meanings.top_k,
    "AwsNeuronIntMatmult": meanings.int_matmul,
    "AwsNeuronDropoutMaskV1": meanings.dropout_mask,
    "AwsNeuronCollectiveMatmul": collective_matmul.matmul,
    "ResizeNearest": resize.nearest,
    "ResizeNearestGrad": resize.nearest_gradient,
    "ResizeBilinear": resize.bilinear,
    "QuantizeMX": mx_calls.quantize,
    "ScaledMatmul": mx_calls.scaled_matmul,
    "__op$block_scaled_dot": mx_calls.scaled_matmul,
}
"""Target -> its meaning."""

PREPARATIONS: Mapping[str, Callable[[Call, Sequence[ir.Value]], list[ir.Value]]] = {
    "AwsNeuronCollectiveMatmul": collective_matmul.gathered,
}
"""Target -> function that makes the meaning's operands from its own, by exchanges between cores."""

IDENTITIES = frozenset({
    "AwsNeuronLNCShardingConstraint", "AwsNeuronTransferWithStaticRing",
    "AwsNeuronModuleMarkerStart-Forward", "AwsNeuronModuleMarkerEnd-Forward",
    "AwsNeuronModuleMarkerStart-Backward", "AwsNeuronModuleMarkerEnd-Backward",
    "NeuronBoundaryMarker-Start", "NeuronBoundaryMarker-End",
})  # fmt: skip
"""Hints for placement and scheduling: each result is the operand of the same number."""

REFUSED: Mapping[str, str] = {
    "AwsNeuronCustomOp": (
        "runs a C++ operator compiled for GpSimdE, which only the device can; compute the same in "
        "JAX on this platform, for example behind a switch of your own"
    ),
    "AwsNeuronDevicePrint": (
        "prints on the device in an undocumented form; use jax.debug.print on this platform"
    ),
    "AwsNeuronRmsNormBackward": (
        "takes the norm's output, from which the scale of its input cannot be recovered; let "
        "jax.grad differentiate the norm written in JAX"
    ),
}
"""Target -> why it cannot be executed, and what to do instead."""

_UNKNOWN = (
    "is not one of the Neuron compiler's targets (error page EVRF015); correct the name, or write "
    "it in JAX"
)
_PREFIXES = ("AwsNeuron", "NeuronBoundaryMarker")
"""Prefixes of names that only the compiler uses."""


def expand(module: ir.Module, policy: Policy) -> None:
    """Replaces the compiler's custom calls in place. Needs the context of ``module``.

    Raises:
      UnsupportedProgramError: a call cannot be executed; the message names its target, the user's
        source line, the reason and what to do.
    """
    functions: dict[Call, ir.OpView] = {}
    for op in custom_calls(module, _is_ours):
        try:
            _replace(op, _values(module, op, policy, functions))
        except UnsupportedProgramError as error:
            raise UnsupportedProgramError(
                f"custom call {custom_call_target(op)} at {source_line(op)} {error}."
            ) from None


def _is_ours(target: str) -> bool:
    return target in SEMANTICS or target in REFUSED or target.startswith(_PREFIXES)


def _values(
    module: ir.Module, op: ir.Operation, policy: Policy, functions: dict[Call, ir.OpView]
) -> list[ir.Value]:
    """The values that replace the results of ``op``."""
    target = custom_call_target(op)
    if target in IDENTITIES:
        return list(op.operands)
    if target not in SEMANTICS:
        raise UnsupportedProgramError(REFUSED.get(str(target), _UNKNOWN))
    call = calls.read(op, policy, replicas_of(module))
    function = calls.in_result_types(SEMANTICS[call.target](call), call.results)
    with ir.InsertionPoint(op), op.location:
        operands = list(op.operands)
        if call.target in PREPARATIONS:
            operands = PREPARATIONS[call.target](call, operands)
        if call not in functions:
            code = merge.lower(function, [tensor_spec(value.type) for value in operands])
            functions[call] = merge.insert(module, code, f"neuron.{call.target}")
        return merge.call(functions[call], operands)


def _replace(op: ir.Operation, values: list[ir.Value]) -> None:
    given, declared = [value.type for value in values], [result.type for result in op.results]
    if given != declared:
        raise UnsupportedProgramError(
            f"passes its operands on, but has operands of types {_texts(given)} and results of "
            f"types {_texts(declared)}; declare the operands' types"
        )
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    op.erase()


def _texts(types: list[ir.Type]) -> str:
    return ", ".join(map(str, types))
