"""Running a program: memories are filled, every rank runs, results are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from neuronjax.emulate.code import Builder, Code
from neuronjax.emulate.element_types import PLAIN, Rounding
from neuronjax.emulate.fabric import Fabric, Running
from neuronjax.emulate.frame import Values
from neuronjax.emulate.memory import Memories
from neuronjax.emulate.program_order import ProgramRunner
from neuronjax.emulate.unit import CoreState, HostFunction
from neuronjax.errors import ArgumentMismatchError
from neuronjax.program.program import Program

Arguments = Mapping[str, np.ndarray]
Results = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class ProgramOrder:
    """One instruction after the other, as the program stands: the fast order."""


Order = ProgramOrder


@dataclass
class Core:
    """One logical core with the program made executable for it."""

    rank: int
    memories: Memories
    state: CoreState
    code: tuple[Code, ...]
    values: Values = field(default_factory=list)


def run(
    program: Program,
    arguments: Sequence[Arguments],
    *,
    order: Order | None = None,
    host: HostFunction | None = None,
    rounding: Rounding = PLAIN,
) -> list[Results]:
    """Runs a program on all its ranks.

    Args:
      program: what every rank runs.
      arguments: for each rank, name of an argument buffer -> array of its shape and dtype.
      order: in which instructions execute; None: program order.
      host: does instructions `host`.
      rounding: how FP32 values become narrow ones.

    Returns:
      For each rank, name of a result buffer -> array.

    Raises:
      ArgumentMismatchError: arguments are missing, or of another shape or dtype.
      MemoryAccessError, OutOfBoundsError: an access or an index leads outside.
      CollectiveError: ranks do not meet.
      MissingHostError: there is work for the host, but no `host`.
    """
    if len(arguments) != program.ranks:
        raise ArgumentMismatchError(
            f"{program.name} runs on {program.ranks} ranks; it was given arguments for"
            f" {len(arguments)}. Pass one mapping for each rank."
        )
    with np.errstate(all="ignore"):
        cores = [
            make_core(program, rank, each, host, rounding) for rank, each in enumerate(arguments)
        ]
        fabric = Fabric(program.ranks)
        fabric.run([_program_order(core, fabric) for core in cores])
        return [core.memories.results() for core in cores]


def make_core(
    program: Program,
    rank: int,
    arguments: Arguments,
    host: HostFunction | None,
    rounding: Rounding,
) -> Core:
    """A core with arguments and constants in its memories."""
    memories = Memories(program)
    memories.load(arguments)
    state = CoreState(rank, rounding=rounding)
    builder = Builder(program, memories, state, host)
    code = builder.build()
    return Core(rank, memories, state, code, [0] * builder.size)


def _program_order(core: Core, fabric: Fabric) -> Running:
    runner = ProgramRunner(fabric, core.rank).block(core.code)
    return runner.running(core.values)
