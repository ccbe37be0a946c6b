"""How instructions of the Scalar engine execute."""

from __future__ import annotations

from neuronjax.emulate.accumulator import reducing
from neuronjax.emulate.activations import ACTIVATIONS
from neuronjax.emulate.arithmetic import applied
from neuronjax.emulate.frame import Values
from neuronjax.emulate.rule import Rules
from neuronjax.emulate.unit import Array, Read, Run, Unit, is_immediate
from neuronjax.program.operand import Immediate, Scalar
from neuronjax.program.operators import AluOp
from neuronjax.program.scalar_engine import Activate, Activate2, ActivateReduce


def _scaled(unit: Unit, data: Read, scale: Scalar, bias: Scalar | None) -> Read:
    """data * scale + bias; product and sum are each rounded to float32."""
    steps: list[tuple[AluOp, Read]] = []
    if scale != Immediate(1.0):
        steps.append((AluOp.MULTIPLY, unit.scalar(scale)))
    if bias is not None and not (is_immediate(bias) and bias == Immediate(0.0)):
        steps.append((AluOp.ADD, unit.scalar(bias)))

    def scaled(values: Values) -> Array:
        x = data(values)
        for op, operand in steps:
            x = applied(op, False)(x, operand(values))
        return x

    return scaled if steps else data


def activate(instruction: Activate | ActivateReduce, unit: Unit) -> Run:
    """dst = op(data * scale + bias), which an `ActivateReduce` has the accumulator reduce, too."""
    inner = _scaled(unit, unit.numbers(instruction.data), instruction.scale, instruction.bias)
    return _run(unit, instruction, inner, unit.scalar(None))


def activate2(instruction: Activate2, unit: Unit) -> Run:
    """dst = op((data op0 imm0) op1 imm1)."""
    data = unit.numbers(instruction.data)
    imm0, imm1 = unit.scalar(instruction.imm0), unit.scalar(instruction.imm1)
    op0 = applied(instruction.op0, instruction.reverse0)
    op1 = applied(instruction.op1, instruction.reverse1)

    def inner(values: Values) -> Array:
        return op1(op0(data(values), imm0(values)), imm1(values))

    return _run(unit, instruction, inner, unit.scalar(instruction.relu_param))


def _run(
    unit: Unit,
    instruction: Activate | ActivateReduce | Activate2,
    inner: Read,
    parameter: Read,
) -> Run:
    function = ACTIVATIONS[instruction.op]
    return reducing(
        unit,
        instruction.data,
        instruction.dst,
        lambda values: function(inner(values), parameter(values)),
    )


RULES: Rules = {Activate: activate, ActivateReduce: activate, Activate2: activate2}
"""Instruction -> rule that turns it into a function."""
