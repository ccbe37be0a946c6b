"""The accumulator registers of the Scalar and Vector engines: one per lane, float32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronjax.emulate.arithmetic import ARITHMETIC, IDENTITIES, reduced
from neuronjax.emulate.frame import Values
from neuronjax.emulate.unit import Array, Read, Run, Unit
from neuronjax.machine.specs import Engine
from neuronjax.program.operand import Access
from neuronjax.program.operators import AluOp, ReduceCommand


@dataclass(frozen=True, slots=True)
class _Command:
    """What a `reduce_cmd` does to the registers before it reduces, and whether it reduces."""

    resets: bool = False
    loads: bool = False
    reduces: bool = False


_COMMANDS: Mapping[ReduceCommand, _Command] = {
    ReduceCommand.IDLE: _Command(),
    ReduceCommand.RESET: _Command(resets=True),
    ReduceCommand.REDUCE: _Command(reduces=True),
    ReduceCommand.RESET_REDUCE: _Command(resets=True, reduces=True),
    ReduceCommand.LOAD_REDUCE: _Command(loads=True, reduces=True),
}


class Accumulator:
    """The registers of the lanes that an instruction reads, and what the instruction does to them.

    Results are accumulated before they are rounded to the type of dst.
    """

    def __init__(self, unit: Unit, data: Access) -> None:
        instruction: Any = unit.instruction
        assert instruction.engine in (Engine.SCALAR, Engine.VECTOR)
        self._registers = unit.core.accumulators[instruction.engine]
        self._window = unit.window(data)
        self._op = getattr(instruction, "reduce_op", None) or AluOp.ADD
        command = getattr(instruction, "reduce_cmd", ReduceCommand.RESET_REDUCE)
        self._command = _COMMANDS[command]
        result = getattr(instruction, "reduce_res", None)
        self._result = unit.output(result) if result is not None else None
        self._initial: Read = unit.scalar(getattr(instruction, "reduce_init", None))
        self._negate = getattr(instruction, "reduce_res_negate", False)

    def take(self, values: Values, results: Array) -> None:
        """Executes the command on the results of an instruction, [partitions, elements]."""
        lanes = self._lanes(values)
        if self._command.resets:
            lanes[...] = IDENTITIES.get(self._op, 0.0)
        if self._command.loads:
            lanes[...] = self._initial(values)
        if self._command.reduces:
            total = reduced(self._op, results)[:, None]
            lanes[...] = total if self._command.resets else ARITHMETIC[self._op](lanes, total)

    def write(self, values: Values) -> None:
        """Writes the registers to `reduce_res`, if there is one."""
        if self._result is not None:
            lanes = self._lanes(values)
            self._result(values, np.negative(lanes) if self._negate else lanes)

    def state(self, values: Values) -> Array:
        """A view of the registers, [partitions, 1]."""
        return self._lanes(values)

    def _lanes(self, values: Values) -> Array:
        row = self._window.row(values)
        return self._registers[row : row + self._window.flat[0]]


def reducing(unit: Unit, data: Access, dst: Access, compute: Read) -> Run:
    """Writes the results of `compute` to dst, after the accumulator has reduced them; `data` is in
    the lanes that it reads."""
    accumulator, write = Accumulator(unit, data), unit.output(dst)

    def run(values: Values) -> None:
        result = compute(values)
        accumulator.take(values, result)
        write(values, result)
        accumulator.write(values)

    return run
