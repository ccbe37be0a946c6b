"""What an op does to numbers: computes them, moves them, or brings them in from outside."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from neuronjax.hlo.custom_calls import CALLBACK_TARGETS, custom_call_target
from neuronjax.hlo.module import ELEMENT_TYPES
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.emit import element_type, shape

MOVES = frozenset({"mhlo.copy"}) | frozenset(
    f"stablehlo.{name}"
    for name in (
        "constant", "broadcast_in_dim", "broadcast", "reshape", "transpose", "slice", "pad",
        "dynamic_slice", "dynamic_update_slice", "concatenate", "reverse", "gather", "select",
        "sort", "real", "imag", "complex", "optimization_barrier", "all_gather", "all_to_all",
        "collective_permute", "collective_broadcast", "bitcast_convert",
    )
)  # fmt: skip
"""Ops whose results hold their operands' bits."""

OUTSIDE = frozenset({
    "stablehlo.rng", "stablehlo.rng_bit_generator", "stablehlo.infeed", "stablehlo.recv",
    "stablehlo.after_all", "stablehlo.create_token", "stablehlo.outfeed", "stablehlo.send",
    "stablehlo.replica_id", "stablehlo.partition_id",
})  # fmt: skip
"""Ops whose results do not depend on numbers of the program."""

SHARDING_MARKS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"})
"""Custom calls that return their operand."""


def name_of(op: ir.Operation) -> str:
    """The name of an op in reports: ``dot_general``, or the target of a custom call."""
    return custom_call_target(op) or op.name.partition(".")[2]


def type_text(value: ir.Value) -> str:
    """A tensor's type as ``f32[2,3]``."""
    return f"{element_type(value)}[{','.join(map(str, shape(value)))}]"


def is_float(value: ir.Value) -> bool:
    """Whether a value holds floating-point or complex numbers."""
    return element_type(value).startswith(("f", "bf", "complex"))


_SPREADS = frozenset(f"stablehlo.{name}" for name in ("broadcast_in_dim", "reshape", "convert"))


def literal_of(value: ir.Value) -> ir.Operation | None:
    """The constant op of a value, possibly broadcast or converted; ``None`` for other values."""
    owner = value.owner
    while not isinstance(owner, ir.Block) and owner.operation.name in _SPREADS:
        owner = owner.operation.operands[0].owner
    if isinstance(owner, ir.Block) or owner.operation.name != "stablehlo.constant":
        return None
    return owner.operation


def from_outside(op: ir.Operation) -> bool:
    """Whether an op's results come from a generator, a host callback or another program."""
    return op.name in OUTSIDE or custom_call_target(op) in CALLBACK_TARGETS


def computes(op: ir.Operation) -> bool:
    """Whether an op computes new floating-point numbers, which may be inexact."""
    if op.name in MOVES or from_outside(op) or custom_call_target(op) in SHARDING_MARKS:
        return False
    if not any(is_float(result) for result in op.results):
        return False
    if op.name != "stablehlo.convert":
        return True
    return not _holds(element_type(op.results[0]), element_type(op.operands[0]))


def _holds(wide: str, narrow: str) -> bool:
    """Whether every number of type ``narrow`` is one of type ``wide``."""
    if not narrow.startswith(("f", "bf")) or not wide.startswith(("f", "bf")):
        return False
    wider, narrower = (ml_dtypes.finfo(ELEMENT_TYPES[name]) for name in (wide, narrow))
    return bool(
        np.float64(wider.max) >= np.float64(narrower.max)
        and wider.minexp - wider.nmant <= narrower.minexp - narrower.nmant
        and wider.nmant >= narrower.nmant
    )
