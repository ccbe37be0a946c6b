"""The input of rules and their output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from neuronjax.machine.specs import CoreSpec, Engine
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access
from neuronjax.program.program import Program
from neuronjax.program.walk import Place, instructions


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule: where it is broken, what is there, and what would be allowed."""

    path: str
    actual: str
    allowed: str


@dataclass(frozen=True, slots=True)
class Site:
    """An instruction with its place and program."""

    program: Program
    place: Place
    instruction: Instruction

    @property
    def core(self) -> CoreSpec:
        return self.program.target.core

    @property
    def version(self) -> int:
        """Generation of the core: 2 for NeuronCore-v2."""
        return self.core.version

    @property
    def is_compute(self) -> bool:
        """Whether an engine itself processes the operands, not a DMA queue or sequencer."""
        return type(self.instruction).__module__.rpartition(".")[2] in _COMPUTE

    def accesses(self) -> Iterator[tuple[str, Access]]:
        """Pairs of a field and an access in it."""
        for use in self.instruction.uses():
            if isinstance(use.operand, Access):
                yield use.field, use.operand


_COMPUTE = ("tensor_engine", "vector_engine", "scalar_engine", "gpsimd_engine", "random_numbers")

Complaint = tuple[str, str]
"""What is there, and what is allowed."""
Check = Callable[[Program], Iterator[Violation]]


@dataclass(frozen=True, slots=True)
class InstructionCheck:
    """A check of programs that checks every instruction by itself."""

    of_site: Callable[[Site], Iterator[Complaint]]

    def __call__(self, program: Program) -> Iterator[Violation]:
        for place, instruction in instructions(program):
            yield from self.at(Site(program, place, instruction))

    def at(self, site: Site) -> Iterator[Violation]:
        """Violations of one instruction."""
        for actual, allowed in self.of_site(site):
            yield Violation(site.place.path, actual, allowed)


def engine_names(engines: tuple[Engine, ...]) -> str:
    return ", ".join(engine.value for engine in engines) or "the host"
