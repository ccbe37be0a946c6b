"""Finds custom calls in a module by their targets."""

from __future__ import annotations

from collections.abc import Callable

from neuronjax.jaxlib_api.mlir import OpOrView, ir

PYTHON_CALLBACK = "xla_ffi_python_cpu_callback"
CALLBACK_TARGETS = frozenset(
    {
        PYTHON_CALLBACK,
        "xla_ffi_partitioned_python_cpu_callback",
        "xla_buffer_python_cpu_callback",
    }
)
"""Targets with which JAX calls Python functions from a program."""

NATIVE_KERNEL = "AwsNeuronCustomNativeKernel"
"""Target of calls of NKI kernels."""
SERIALIZED_KERNEL = "neuronjax.kernel"
"""Attribute of a call of a host function that stands for a kernel: the kernel's configuration."""


def custom_call_target(op: OpOrView) -> str | None:
    """The target of a custom call; ``None`` for other ops."""
    if op.name != "stablehlo.custom_call":
        return None
    return ir.StringAttr(op.attributes["call_target_name"]).value


def custom_calls(module: ir.Module, wanted: Callable[[str], bool]) -> list[ir.Operation]:
    """The custom calls of a module whose target is wanted, in program order."""
    calls: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        target = custom_call_target(op)
        if target is not None and wanted(target):
            calls.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return calls
