"""Instructions of the Scalar engine: activation functions, in float32.

The engine has one accumulator register per lane. `reduce_cmd` says what the instruction does to
it, `reduce_res` where it is written afterwards; None keeps the value in the engine.
"""

from __future__ import annotations

from dataclasses import field

from neuronjax.machine.specs import Engine
from neuronjax.program.instruction import READ, WRITE, Instruction, instruction
from neuronjax.program.operand import Access, Immediate, Scalar
from neuronjax.program.operators import Activation, AluOp, ReduceCommand

ZERO_SCALAR = Immediate(0.0)
ONE_SCALAR = Immediate(1.0)


@instruction("activation", (Engine.SCALAR,))
class Activate(Instruction):
    """dst = op(data * scale + bias); the accumulator sums the results."""

    dst: Access = field(metadata=WRITE)
    op: Activation
    data: Access = field(metadata=READ)
    bias: Scalar | None = field(default=None, metadata=READ)
    scale: Scalar = field(default=ONE_SCALAR, metadata=READ)
    reduce_op: AluOp | None = None
    reduce_res: Access | None = field(default=None, metadata=WRITE)
    reduce_cmd: ReduceCommand = ReduceCommand.IDLE


@instruction("activation_reduce", (Engine.SCALAR,))
class ActivateReduce(Instruction):
    """dst = op(data * scale + bias); reduce_res = reduce_op over the free dimensions of dst."""

    dst: Access = field(metadata=WRITE)
    op: Activation
    data: Access = field(metadata=READ)
    reduce_op: AluOp = AluOp.ADD
    reduce_res: Access | None = field(default=None, metadata=WRITE)
    bias: Scalar | None = field(default=None, metadata=READ)
    scale: Scalar = field(default=ONE_SCALAR, metadata=READ)


@instruction("activate2", (Engine.SCALAR,))
class Activate2(Instruction):
    """dst = op((data op0 imm0) op1 imm1), with the accumulator reduced by `reduce_op`."""

    dst: Access = field(metadata=WRITE)
    op: Activation
    data: Access = field(metadata=READ)
    op0: AluOp = AluOp.BYPASS
    imm0: Scalar = field(default=ZERO_SCALAR, metadata=READ)
    op1: AluOp = AluOp.BYPASS
    imm1: Scalar = field(default=ZERO_SCALAR, metadata=READ)
    relu_param: Scalar = field(default=ZERO_SCALAR, metadata=READ)
    reverse0: bool = False
    reverse1: bool = False
    reduce_op: AluOp | None = None
    reduce_res: Access | None = field(default=None, metadata=WRITE)
    reduce_cmd: ReduceCommand = ReduceCommand.IDLE
