"""Rewrites that give a program the numerics of the chip."""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir

from neuronjax.legalize.policy import Policy


def apply(module: ir.Module, policy: Policy) -> None:
    """Rewrites ``module`` in place."""
    ignore_dot_algorithms(module)


def ignore_dot_algorithms(module: ir.Module) -> None:
    """Removes precision algorithms from dots, in place: dots run in their operands' types.

    Source: JAX NeuronX known issues, "DotAlgorithmPreset is not always respected".
    """

    def visit(op: Any) -> ir.WalkResult:
        if op.name == "stablehlo.dot_general" and "algorithm" in op.attributes:
            del op.attributes["algorithm"]
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
