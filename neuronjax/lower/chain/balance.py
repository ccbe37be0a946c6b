"""Sharing the element-wise work of a kernel between the Vector and the Scalar engine.

Copies, squares and operations with scalars run on either. They are written for Vector; those that
bring it and the Scalar engine into balance move there, first what empties PSUM: its producer is
another engine anyway. Prices are rough, in elements of a partition: only their order matters.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from neuronjax.formats import BFLOAT16, FLOAT16, FLOAT32
from neuronjax.lower.tuning import Tuning
from neuronjax.machine.specs import CoreSpec, Engine
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Immediate, Memory, Scalar
from neuronjax.program.operators import Activation, AluOp
from neuronjax.program.program import Kernel, Loop, Node
from neuronjax.program.scalar_engine import ONE_SCALAR, Activate
from neuronjax.program.vector_engine import (
    ScalarTensorTensor,
    TensorCopy,
    TensorScalar,
    TensorTensor,
)

_TYPES = (FLOAT32, BFLOAT16, FLOAT16)
_FIXED = 64
"""What an instruction costs beside its elements."""
_WAKING = 100
"""What it costs to wait for another engine, about."""


def balanced(kernel: Kernel, core: CoreSpec, tuning: Tuning) -> Kernel:
    """The kernel with instructions of Vector moved to the Scalar engine where that helps."""
    clocks = {engine: core.clock_hz(engine) for engine in (Engine.VECTOR, Engine.SCALAR)}
    busy = dict.fromkeys(clocks, 0.0)
    flexible: list[tuple[int, Instruction, int]] = []
    for number, (instruction, runs) in enumerate(_instructions(kernel.body, 1)):
        if instruction.engine in busy:
            busy[instruction.engine] += runs * _cost(instruction) / clocks[instruction.engine]
        if _is_flexible(instruction, core, tuning.scalar_elements):
            flexible.append((number, instruction, runs))
    to_scalar: set[int] = set()
    for number, instruction, runs in sorted(flexible, key=lambda entry: not _reads_psum(entry[1])):
        leaves = runs * _cost(instruction) / clocks[Engine.VECTOR]
        comes = runs * _cost(_on_scalar(instruction) or instruction) / clocks[Engine.SCALAR]
        waits = runs * _WAKING / clocks[Engine.SCALAR]
        if busy[Engine.SCALAR] + comes + waits <= busy[Engine.VECTOR] - leaves:
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
    """The same nodes, instructions of these numbers on the Scalar engine."""
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
    """The same as an activation: op(data * scale + bias); None: there is none."""
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


def _is_flexible(instruction: Instruction, core: CoreSpec, least: int) -> bool:
    """Whether it is written for Vector, and the Scalar engine does the same as fast."""
    other = _on_scalar(instruction)
    if instruction.engine is not Engine.VECTOR or other is None:
        return False
    if isinstance(other.bias, Immediate) and not core.takes_constant_bias:
        return False
    if any(access.element_type not in _TYPES for access in instruction.accesses()):
        return False
    streams = [access for access in instruction.accesses() if access.free_elements > 1]
    if max((access.free_elements for access in streams), default=0) < least:
        return False
    narrow = all(access.element_type is not FLOAT32 for access in streams)
    return not (narrow and core.vector.wide)


def _reads_psum(instruction: Instruction) -> bool:
    return any(access.memory is Memory.PSUM for access in instruction.accesses())


def _cost(instruction: Instruction) -> float:
    accesses = instruction.accesses()
    elements = max((access.free_elements for access in accesses), default=0)
    pair = isinstance(instruction, TensorTensor | ScalarTensorTensor) and not _reads_psum(
        instruction
    )
    return _FIXED + (2 if pair else 1) * elements
