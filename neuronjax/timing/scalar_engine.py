"""Cost of activation functions: max(64, N) cycles, and the tables of another function.

Which functions share tables is documented nowhere: those without a table of their own are taken to
be in all of them, every other one has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neuronjax.machine.specs import Engine
from neuronjax.program.instruction import Instruction
from neuronjax.program.operators import Activation, ReduceCommand
from neuronjax.program.scalar_engine import Activate, Activate2, ActivateReduce
from neuronjax.timing.cost import Cost, Rule, extra, streaming
from neuronjax.timing.platform import Platform
from neuronjax.timing.walks import longest

WITHOUT_TABLES = frozenset({
    Activation.COPY, Activation.SQUARE, Activation.RELU, Activation.PRELU, Activation.SIGN,
    Activation.ABS,
})  # fmt: skip
"""Functions that need no tables: at most one comparison or product."""


def _activation(instruction: Any, platform: Platform) -> Cost:
    elements = longest(platform, instruction.dst, instruction.data)
    spec = platform.core.scalar
    wide = min(
        spec.elements_per_cycle(access.element_type.name)
        for access in (instruction.dst, instruction.data)
    )
    cycles = elements * spec.lanes / wide
    tables = None if instruction.op in WITHOUT_TABLES else instruction.op.value
    return Cost(tables=tables) + streaming(platform, Engine.SCALAR, cycles)


def _accumulator(platform: Platform) -> Cost:
    """Reading the accumulator register after the elements."""
    return extra(platform, Engine.SCALAR, platform.timings.engines.accumulator_cycles)


def _reducing(instruction: Any, platform: Platform) -> Cost:
    is_read = (
        instruction.reduce_res is not None and instruction.reduce_cmd is not ReduceCommand.IDLE
    )
    cost = _activation(instruction, platform)
    return cost + _accumulator(platform) if is_read else cost


def _activation_reduce(instruction: ActivateReduce, platform: Platform) -> Cost:
    return _activation(instruction, platform) + _accumulator(platform)


COSTS: Mapping[type[Instruction], Rule] = {
    Activate: _reducing,
    ActivateReduce: _activation_reduce,
    Activate2: _reducing,
}
