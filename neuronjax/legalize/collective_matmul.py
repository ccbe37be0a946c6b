"""AwsNeuronCollectiveMatmul: a matmul whose first operand is gathered from a group of cores.

Operands (lhs, rhs) of two dimensions; the result is dot(all_gather(lhs, 0), rhs), contracting the
last dimension of lhs with a given one of rhs. backend_config is
``rhs_contracting_dim=<d>,tp_degree=<cores>,num_groups=<n>,use_sb_to_sb=<0|1>``; the last one
concerns the placement of buffers. Source: neuronx-distributed, looped einsum, and its reference
with a plain all-gather. If there are several groups, it is not documented which cores form them.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax import lax

from neuronjax.errors import UnsupportedProgramError
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.call import Call, Function, computing_type

_KEYS = ("rhs_contracting_dim", "tp_degree", "num_groups", "use_sb_to_sb")


def _config(call: Call) -> dict[str, int]:
    pairs = [entry.partition("=") for entry in call.config.split(",")]
    if [key for key, _, _ in pairs] != list(_KEYS) or not all(v.isdecimal() for _, _, v in pairs):
        raise call.bad_config("=<number>,".join(_KEYS) + "=<number>")
    config = {key: int(value) for key, _, value in pairs}
    if config["rhs_contracting_dim"] > 1 or config["tp_degree"] == 0:
        raise call.bad_config("rhs_contracting_dim 0 or 1 and tp_degree of at least 1")
    if config["num_groups"] != 1:
        raise UnsupportedProgramError(
            f"gathers in {config['num_groups']} groups, whose cores are undocumented; use "
            "jax.lax.all_gather over a mesh axis and a matmul"
        )
    if config["tp_degree"] not in (1, call.cores):
        raise UnsupportedProgramError(
            f"gathers from {config['tp_degree']} of {call.cores} cores; tp_degree must be the "
            "number of cores that run the program"
        )
    return config


def matmul(call: Call) -> Function:
    """(gathered lhs, rhs): their product, accumulated in FP32."""
    lhs, rhs = call.expect_operands("lhs", "rhs")
    call.expect_floats()
    contracted = _config(call)["rhs_contracting_dim"]
    if len(lhs.shape) != 2 or len(rhs.shape) != 2 or lhs.shape[1] != rhs.shape[contracted]:
        raise UnsupportedProgramError(
            f"multiplies {lhs.shape} and {rhs.shape} over dimensions 1 and {contracted}; both must "
            "be matrices, and equal there"
        )
    dimensions = (((1,), (contracted,)), ((), ()))
    result = computing_type(lhs.dtype)

    def function(gathered: jax.Array, rhs: jax.Array) -> jax.Array:
        return lax.dot_general(gathered, rhs, dimensions, preferred_element_type=result)

    return function


def gathered(call: Call, operands: Sequence[ir.Value]) -> list[ir.Value]:
    """The operands with the first one gathered, at the current insertion point."""
    lhs, rhs = operands
    cores = _config(call)["tp_degree"]
    if cores == 1:
        return [lhs, rhs]
    (rows, columns), element = call.operands[0].shape, ir.RankedTensorType(lhs.type).element_type
    gather = ir.Operation.create(
        "stablehlo.all_gather",
        results=[ir.RankedTensorType.get([rows * cores, columns], element)],
        operands=[lhs],
        attributes={
            "all_gather_dim": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 0),
            "replica_groups": ir.DenseIntElementsAttr.get(np.arange(cores).reshape(1, cores)),
        },
    )
    return [gather.results[0], rhs]
