"""Sharing the element-wise work of a kernel between the Vector and the Scalar engine.

Copies, squares and operations with scalars run on either. They are written for Vector; those that
bring it and the Scalar engine into balance move there, first what empties PSUM: its producer is
another engine anyway.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from neuronjax.formats import BFLOAT16, FLOAT16, FLOAT32
from neuronjax.lower.rates import Rates
from neuronjax.lower.tuning import Tuning
from neuronjax.machine.specs import CoreSpec, Engine
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Immediate, Memory, Scalar
from neuronjax.program.operators import Activation, AluOp
from neuronjax.program.program import Kernel, Loop, Node
from neuronjax.program.scalar_engine import ONE_SCALAR, Activate
from neuronjax.program.vector_engine import (
    TensorCopy,
    TensorScalar,
    TensorTensor,
)

_TYPES = (FLOAT32, BFLOAT16, FLOAT16)


def balanced(kernel: Kernel, core: CoreSpec, rates: Rates, tuning: Tuning) -> Kernel:
    """The kernel with instructions of Vector moved to the Scalar engine where that helps."""
    prices = rates.prices
    busy = {Engine.VECTOR: 0.0, Engine.SCALAR: 0.0}
    flexible: list[tuple[int, Instruction, Activate, int]] = []
    for number, (instruction, runs) in enumerate(_instructions(kernel.body, 1)):
        if instruction.engine in busy:
            busy[instruction.engine] += runs * prices.of(instruction).issue
        other = as_activation(instruction, core, tuning.scalar_elements)
        if other is not None and not needs_column(other, core):
            flexible.append((number, instruction, other, runs))
    to_scalar: set[int] = set()
    for number, instruction, other, runs in sorted(
        flexible, key=lambda entry: not _reads_psum(entry[1])
    ):
        leaves, comes = (runs * prices.of(way).issue for way in (instruction, other))
        # The trips of a loop overlap: only the first one waits for another engine.
        if busy[Engine.SCALAR] + comes + prices.wake_ns <= busy[Engine.VECTOR] - leaves:
            busy[Engine.VECTOR] -= leaves
            busy[Engine.SCALAR] += comes
            to_scalar.add(number)
    return replace(kernel, body=_rewritten(kernel.body, itertools.count(), to_scalar))


def _instructions(nodes: Sequence[Node], runs: int) -> Iterator[tuple[Instruction, int]]:
    """Instructions within plain loops, with how often they run."""
    for node in nodes:
        if isinstance(node, Loop):
            yield from _instructions(node.body, runs * (node.most_trips or 1))
        elif isinstance(node, Instruction):
            yield node, runs


def _rewritten(
    nodes: Sequence[Node], numbers: Iterator[int], to_scalar: Collection[int]
) -> tuple[Node, ...]:
    """The nodes, with instructions of these numbers on the Scalar engine."""
    rewritten: list[Node] = []
    for node in nodes:
        if isinstance(node, Loop):
            rewritten.append(replace(node, body=_rewritten(node.body, numbers, to_scalar)))
        elif isinstance(node, Instruction):
            other = _on_scalar(node) if next(numbers) in to_scalar else None
            rewritten.append(other or node)
        else:
            rewritten.append(node)
    return tuple(rewritten)


def _on_scalar(instruction: Instruction) -> Activate | None:
    """The instruction as an activation: op(data * scale + bias); None: there is none."""
    if isinstance(instruction, TensorCopy):
        return Activate(dst=instruction.dst, op=Activation.COPY, data=instruction.src)
    if (
        isinstance(instruction, TensorTensor)
        and instruction.op is AluOp.MULTIPLY
        and instruction.data1 == instruction.data2
    ):
        return Activate(dst=instruction.dst, op=Activation.SQUARE, data=instruction.data1)
    if not isinstance(instruction, TensorScalar):
        return None
    steps = [(instruction.op0, instruction.operand0), (instruction.op1, instruction.operand1)]
    if instruction.op1 is None:
        steps.pop()
    function = Activation.COPY
    scale: Scalar = ONE_SCALAR
    bias: Scalar | None = None
    if steps[-1] == (AluOp.MAXIMUM, Immediate(0.0)):
        function = Activation.RELU
        steps.pop()
    if steps and steps[0][0] is AluOp.MULTIPLY:
        scale = steps.pop(0)[1] or ONE_SCALAR
    if steps and steps[0][0] is AluOp.ADD:
        bias = steps.pop(0)[1]
    if steps:
        return None
    return Activate(dst=instruction.dst, op=function, data=instruction.data, scale=scale, bias=bias)


def needs_column(activation: Activate, core: CoreSpec) -> bool:
    """Whether it adds a number, and its core reads what is added from a tile."""
    return isinstance(activation.bias, Immediate) and not core.takes_constant_bias


def as_activation(instruction: Instruction, core: CoreSpec, least: int) -> Activate | None:
    """The instruction of the Scalar engine for one that is written for Vector, if that does the
    same and has so many elements at least; None: there is none."""
    other = _on_scalar(instruction)
    if instruction.engine is not Engine.VECTOR or other is None:
        return None
    if any(access.element_type not in _TYPES for access in instruction.accesses()):
        return None
    streams = [access for access in instruction.accesses() if access.free_elements > 1]
    if core.vector.wide and all(access.element_type is not FLOAT32 for access in streams):
        return None  # Vector takes several in a cycle, and keeps the bits of what is no number
    most = max((access.free_elements for access in streams), default=0)
    return other if most >= least else None


def _reads_psum(instruction: Instruction) -> bool:
    return any(access.memory is Memory.PSUM for access in instruction.accesses())
