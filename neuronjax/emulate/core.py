"""Running a program: fills the memories, runs every rank, and reads the results.

`run` does all of this; an `Emulation` can also be inspected, observed and stopped on the way.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

import numpy as np

from neuronjax.emulate.blas import blas_without_threads
from neuronjax.emulate.checks import Checks
from neuronjax.emulate.code import Builder, Code, Step
from neuronjax.emulate.dataflow import DataflowRunner
from neuronjax.emulate.element_types import PLAIN, RandomBits, Rounding
from neuronjax.emulate.fabric import Fabric, Member, Running
from neuronjax.emulate.frame import Values
from neuronjax.emulate.hooks import Hooks, hooks_of
from neuronjax.emulate.memory import Location, Memories
from neuronjax.emulate.program_order import ProgramRunner
from neuronjax.emulate.stream_choice import Favourites, Late
from neuronjax.emulate.unit import CoreState, HostFunction
from neuronjax.emulate.window import Forms
from neuronjax.errors import ArgumentMismatchError, MemoryAccessError
from neuronjax.process_settings import seldom_collected
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Kind
from neuronjax.program.program import Program

Arguments = Mapping[str, np.ndarray]
Results = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class ProgramOrder:
    """The order in which the program lists its instructions: the fast one."""


@dataclass(frozen=True, slots=True)
class DataflowOrder:
    """Engines and queues run concurrently, synchronised by semaphores; `seed` decides who is next.

    With `adversarial`, transfers end as late as possible.
    """

    seed: int = 0
    adversarial: bool = False


Order = ProgramOrder | DataflowOrder


@dataclass(frozen=True, slots=True)
class Executed:
    """An instruction that has just executed: the `number`-th of the run, from 1."""

    number: int
    rank: int
    path: str
    instruction: Instruction
    #: Loop variable -> value.
    values: Mapping[str, int]
    #: Reads what an access of the instruction names: an array [partitions, sizes of the walk].
    look: Callable[[Access], np.ndarray]


Observer = Callable[[Executed], None]


@dataclass
class Core:
    """A logical core and the program made executable for it."""

    rank: int
    memories: Memories
    state: CoreState
    hooks: Hooks
    code: tuple[Code, ...]
    values: Values


class RunOptions(TypedDict, total=False):
    """How a program runs."""

    #: The order in which instructions execute; None: program order.
    order: Order | None
    #: Executes `Host` instructions: (instruction, sources) -> results.
    host: HostFunction | None
    #: The checks to make; None: all of them, and the first finding ends the run.
    checks: Checks | None
    #: How FP32 values are rounded to narrower formats.
    rounding: Rounding


class _Stop(Exception):
    """Raised when the instruction at which the run is to stop has executed."""


class Emulation:
    """A program and its memories on all ranks.

    Args: those of `run`, and `observe`, which is called after every instruction.

    Raises:
      ArgumentMismatchError: arguments are missing or have the wrong shape or dtype.
      MissingHostError: the program calls the host, but `host` is missing.
      MemoryAccessError: a buffer lies outside its memory.
    """

    def __init__(
        self,
        program: Program,
        arguments: Sequence[Arguments],
        *,
        order: Order | None = None,
        host: HostFunction | None = None,
        checks: Checks | None = None,
        rounding: Rounding = PLAIN,
        observe: Observer | None = None,
    ) -> None:
        self.program = program
        self._check_ranks(arguments)
        self.order: Order = order or ProgramOrder()
        self.executed = 0
        self._host = host
        self._checks = checks or Checks()
        self._rounding = rounding
        self._observer = observe
        self._limit: int | None = None
        self._arguments = arguments
        self._cores: list[Core] | None = None
        self._forms = Forms()

    def _check_ranks(self, arguments: Sequence[Arguments]) -> None:
        if len(arguments) != self.program.ranks:
            raise ArgumentMismatchError(
                f"{self.program.name} runs on {self.program.ranks} ranks, but got arguments for"
                f" {len(arguments)}. Pass one mapping per rank."
            )

    @property
    def cores(self) -> list[Core]:
        """The cores, with arguments and constants in their memories before the run."""
        if self._cores is None:
            with np.errstate(all="ignore"), seldom_collected:
                self._cores = [self._core(*ranked) for ranked in enumerate(self._arguments)]
        return self._cores

    def _core(self, rank: int, arguments: Arguments) -> Core:
        memories = Memories(self.program)
        memories.load(arguments)
        rounding = self._rounding
        state = CoreState(rank, rounding=rounding, rounding_bits=RandomBits(rounding.seed))
        has_races = isinstance(self.order, DataflowOrder)
        hooks = hooks_of(self.program, rank, self._checks, has_races=has_races)
        builder = Builder(self.program, memories, state, self._forms, self._host, hooks.watcher)
        code = builder.build()
        hooks.restart(memories.held())
        return Core(rank, memories, state, hooks, code, [0] * builder.size)

    def _observe(self, rank: int, step: Step, values: Values) -> None:
        self.executed += 1
        if self._observer is not None:
            valuation = step.frame.valuation(values)
            self._observer(
                Executed(
                    self.executed, rank, step.path, step.instruction, valuation,
                    lambda access: step.look(access, values),
                )
            )  # fmt: skip
        if self._limit is not None and self.executed >= self._limit:
            raise _Stop

    def run(self, *, to: int | None = None) -> None:
        """Runs the program, or only its first `to` instructions, counted over all ranks.

        Raises:
          MemoryAccessError, OutOfBoundsError: an access or an index is out of bounds.
          UninitialisedError, OverwrittenError, AccumulationError, RaceError: a check failed and
            `Checks.report` is the default; a partly written result is an UninitialisedError.
          DeadlockError: engines wait for ever.
          CollectiveError: the ranks of a group do not run the same collectives.
        """
        self._limit = to
        fabric = Fabric(self.program.ranks)
        cores = self.cores
        if to is not None or self._observer is not None:
            for core in cores:
                core.hooks.observe = self._observe
        with np.errstate(all="ignore"), seldom_collected, blas_without_threads:
            try:
                fabric.run([self._running(core, fabric) for core in cores])
            except _Stop:
                return
        for core in cores:
            self._check_results(core)

    def _check_results(self, core: Core) -> None:
        written = core.hooks.written
        if written is None:
            return
        for buffer in self.program.buffers:
            if buffer.kind is Kind.RESULT:
                written.ends(buffer, core.memories.locations[buffer.name])

    def _running(self, core: Core, fabric: Fabric) -> Running:
        if isinstance(self.order, ProgramOrder):
            block = ProgramRunner(Member(fabric, core.rank), core.hooks).block(core.code)
            return block.running(core.values)
        chance = random.Random(f"{self.order.seed}/{core.rank}")
        choice = Late(chance) if self.order.adversarial else Favourites(chance)
        return DataflowRunner.of(fabric, core.rank, choice, core.hooks).running(
            core.code, core.values
        )

    def reload(self, arguments: Sequence[Arguments], rounding_seed: int = 0) -> None:
        """Prepares another run with new arguments, which is cheaper than a new `Emulation`.

        Stochastic rounding draws the bits of `rounding_seed`.

        Raises:
          ArgumentMismatchError: arguments are missing or have the wrong shape or dtype.
        """
        self._check_ranks(arguments)
        self._rounding = dataclasses.replace(self._rounding, seed=rounding_seed)
        self._arguments, self.executed = arguments, 0
        for core in self._cores or ():
            core.memories.clear()
            core.memories.load(arguments[core.rank])
            core.state.reset(rounding_seed)
            core.values[:] = [0] * len(core.values)
            core.hooks.restart(core.memories.held())

    @property
    def bytes_per_rank(self) -> int:
        """Bytes of memory that it emulates on each rank."""
        return self.cores[0].memories.nbytes

    def results(self) -> list[Results]:
        """Copies of the results of each rank, by name of the result buffer."""
        return [core.memories.results() for core in self.cores]

    def buffer(self, name: str, *, rank: int = 0, slot: int = 0) -> np.ndarray:
        """A copy of one slot of any buffer; a kernel's own buffers are named with its path.

        Raises:
          MemoryAccessError: there is no such buffer or rank.
        """
        if not 0 <= rank < len(self.cores):
            raise MemoryAccessError(
                f"rank {rank} does not exist: {self.program.name} runs on ranks 0 to"
                f" {len(self.cores) - 1}."
            )
        memories = self.cores[rank].memories
        buffer, location = self._find(name, memories)
        return memories.value(buffer, location, slot)

    def _find(self, name: str, memories: Memories) -> tuple[Buffer, Location]:
        shared = next((buffer for buffer in self.program.buffers if buffer.name == name), None)
        if shared is not None:
            return shared, memories.locations[name]
        inner = {
            path: placed
            for path, placed in memories.inner.items()
            if f"/{path}".endswith(f"/{name}")
        }
        if len(inner) != 1:
            known = sorted(inner or (*memories.locations, *memories.inner))
            raise MemoryAccessError(
                f"{name} matches {len(inner)} buffers of {self.program.name}, but must match"
                f" exactly one. Choose from {', '.join(known)}."
            )
        return next(iter(inner.values()))


def run(
    program: Program,
    arguments: Sequence[Arguments],
    **options: Unpack[RunOptions],
) -> list[Results]:
    """Runs a program on all its ranks.

    Args:
      program: what every rank runs.
      arguments: for each rank, argument buffer name -> array of the buffer's shape, in the dtype
        that numpy or ml_dtypes has for its element type (float32 for tfloat32, words for packed
        types).
      options: see `RunOptions`.

    Returns:
      For each rank, result buffer name -> array.

    Raises: as `Emulation` and `Emulation.run`.
    """
    emulation = Emulation(program, arguments, **options)
    emulation.run()
    return emulation.results()
