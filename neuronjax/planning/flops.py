"""Multiplications and additions of a module's products: what a model asks for, whoever does it.

Those of NKI kernels are the products of their instructions, transposes left out.

Neuron Explorer's ``model_flops``: 2 · MAC of the HLO (tools/neuron-explorer, summary page).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from neuronjax.hlo import module as hlo
from neuronjax.hlo.custom_calls import SERIALIZED_KERNEL
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.program import serialized_kernel
from neuronjax.program.instruction import Instruction
from neuronjax.program.program import Loop, Node
from neuronjax.program.tensor_engine import Matmul, MatmulMX
from neuronjax.program.walk import children

_INTEGERS = re.compile(r"lhs_(\w+)_dimensions = \[([\d, ]*)\]")


def model_flops(code: bytes, unknown_trips: int = 1) -> int:
    """2 · MAC of all products of a per-core module; `unknown_trips` of loops that do not say."""
    with hlo.context():
        module = hlo.load(code)
        functions = {
            ir.StringAttr(op.attributes["sym_name"]).value: op
            for op in module.body.operations
            if op.operation.name == "func.func"
        }
        return _Counter(functions, unknown_trips).region(functions["main"].regions[0])


class _Counter:
    """Goes through regions; a function that is called often is looked at once."""

    def __init__(self, functions: Mapping[str, Any], unknown_trips: int) -> None:
        self.functions = functions
        self.unknown_trips = unknown_trips
        self.known: dict[str, int] = {}

    def region(self, region: Any) -> int:
        return sum(self.op(op.operation) for block in region.blocks for op in block.operations)

    def op(self, op: Any) -> int:
        rule = _RULES.get(op.name)
        if rule is not None:
            return rule(op)
        if op.name == "func.call":
            return self.function(str(op.attributes["callee"]).lstrip("@").strip('"'))
        if op.name == "stablehlo.while":
            trips = trip_count(op)
            once = self.region(op.regions[0]) + self.region(op.regions[1])
            return once * (self.unknown_trips if trips is None else trips)
        if op.name in ("stablehlo.case", "stablehlo.if"):
            return max(map(self.region, op.regions), default=0)
        return sum(map(self.region, op.regions))

    def function(self, name: str) -> int:
        if name not in self.known:
            function = self.functions.get(name)
            self.known[name] = self.region(function.regions[0]) if function is not None else 0
        return self.known[name]


def _shape(value: Any) -> list[int]:
    return list(ir.RankedTensorType(value.type).shape)


def _dot(op: Any) -> int:
    dimensions = dict(_INTEGERS.findall(str(op.attributes["dot_dimension_numbers"])) or ())
    if "contracting" not in dimensions:
        numbers = re.search(
            r"lhs_contracting_dimensions = \[([\d, ]*)\]",
            str(op.attributes["dot_dimension_numbers"]),
        )
        dimensions["contracting"] = numbers[1] if numbers else ""
    sizes = _shape(op.operands[0])
    contracted = [sizes[int(axis)] for axis in dimensions["contracting"].split(",") if axis.strip()]
    return 2 * math.prod(contracted) * math.prod(_shape(op.results[0]))


def _convolution(op: Any) -> int:
    """Every output takes the kernel once, but for its output features."""
    numbers = str(op.attributes["dimension_numbers"])
    kernel = numbers.split("x", 1)[1].split("->")[0].strip().strip("[]").split(",")
    features = _shape(op.operands[1])[[letter.strip() for letter in kernel].index("o")]
    return 2 * math.prod(_shape(op.operands[1])) // features * math.prod(_shape(op.results[0]))


def _custom_call(op: Any) -> int:
    if SERIALIZED_KERNEL not in op.attributes:
        return 0
    return _of_kernel(ir.StringAttr(op.attributes[SERIALIZED_KERNEL]).value)


@functools.lru_cache(maxsize=64)
def _of_kernel(configuration: str) -> int:
    return _products(serialized_kernel.known(configuration).program.body)


def _products(nodes: Iterable[Node]) -> int:
    """2 · MAC of nodes; loops whose trips a register holds run once."""
    return sum(
        _product(node)
        if isinstance(node, Instruction)
        else _products(children(node)) * (node.most_trips or 1 if isinstance(node, Loop) else 1)
        for node in nodes
    )


def _product(instruction: Instruction) -> int:
    """K · M stationary numbers meet N moving ones each; packed elements are four numbers."""
    if isinstance(instruction, MatmulMX):
        return 2 * 4 * instruction.stationary.elements * instruction.dst.free_elements
    if isinstance(instruction, Matmul) and not instruction.is_transpose:
        return 2 * instruction.stationary.elements * instruction.dst.free_elements
    return 0


_RULES: Mapping[str, Callable[[Any], int]] = {
    "stablehlo.dot_general": _dot,
    "stablehlo.dot": lambda op: 2 * math.prod(_shape(op.results[0])) * _shape(op.operands[0])[-1],
    "stablehlo.convolution": _convolution,
    "stablehlo.custom_call": _custom_call,
}


def trip_count(op: Any) -> int | None:
    """Trips of a while that counts by one from a constant to a constant, as JAX's scans do."""
    block = op.regions[0].blocks[0]
    compare = _maker(block.operations[len(block.operations) - 1].operands[0])
    if compare is None or compare.name != "stablehlo.compare":
        return None
    if "LT" not in str(compare.attributes["comparison_direction"]):
        return None
    limit = _constant(compare.operands[1], op, block)
    first = _constant(compare.operands[0], op, block)
    return None if limit is None or first is None else max(0, limit - first)


def _maker(value: Any) -> Any:
    """The operation of a value; None: it is an argument of a block."""
    return None if isinstance(value.owner, ir.Block) else value.owner


def _constant(value: Any, loop: Any, block: Any) -> int | None:
    """An integer: a constant, or a value of the loop that begins as one."""
    maker = _maker(value)
    if maker is None and value.owner == block:
        return _constant(loop.operands[ir.BlockArgument(value).arg_number], loop, None)
    if maker is None or maker.name != "stablehlo.constant":
        return None
    match = re.search(r"dense<(-?\d+)>", str(maker.attributes["value"]))
    return int(match[1]) if match else None
