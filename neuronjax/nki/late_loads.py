"""Instructions that wait until their results are used: tiles fit then that would not otherwise.

Kernels often load all they need, and rearrange it, before they begin. What only prepares a tile can
come as late as the first instruction that needs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from neuronjax.nki.tracing import Trace
from neuronjax.program.dma import DmaCopy, DmaGather, DmaTranspose
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Kind, Memory
from neuronjax.program.tensor_engine import TensorTranspose
from neuronjax.program.vector_engine import Memset, TensorCopy, TensorTensor, VectorTranspose

LOADS: tuple[type[Instruction], ...] = (DmaCopy, DmaTranspose, Memset)
PREPARATIONS: tuple[type[Instruction], ...] = (
    *(*LOADS, DmaGather, TensorCopy, TensorTensor),
    *(TensorTranspose, VectorTranspose),
)
"""Instructions whose results depend on their operands alone, so that they may come later."""


@dataclass(frozen=True, eq=False)
class _Step:
    """An instruction, with the buffers that it touches and those that it writes to."""

    instruction: Instruction
    touched: frozenset[str]
    written: frozenset[str]

    def must_follow(self, other: _Step) -> bool:
        """Whether it has to stay behind a step that came before it."""
        return bool(self.touched & other.written or self.written & other.touched)


def with_late(
    kinds: tuple[type[Instruction], ...],
    instructions: Sequence[Instruction],
    trace: Trace,
    traces: Sequence[Trace],
) -> Sequence[Instruction]:
    """The instructions of one of the programs of a grid, in which those of some kinds are late.

    All are where they were if a loop runs as often as a register says, or tiles are also viewed as
    another width.
    """
    if trace.register_loops or trace.aliases:
        return instructions
    written = {
        name for other in traces for item in other.instructions for name in _step(item).written
    }
    waiting, late = _Waiting(), list[Instruction]()
    for instruction in instructions:
        step = _step(instruction)
        can_wait = isinstance(instruction, kinds) and _may_wait(instruction, written)
        if can_wait and waiting.will_write(_psum_read(instruction)):
            waiting.add(step)
        else:
            late += [*waiting.needed(step), instruction]
    return [*late, *(step.instruction for step in waiting.steps)]


class _Waiting:
    """Steps that wait, in their order."""

    def __init__(self) -> None:
        self.steps: list[_Step] = []
        self._touched: Counter[str] = Counter()
        self._written: Counter[str] = Counter()

    def add(self, step: _Step) -> None:
        """Lets one more step wait."""
        self.steps.append(step)
        self._touched.update(step.touched)
        self._written.update(step.written)

    def will_write(self, names: Iterable[str]) -> bool:
        """Whether steps that wait write all of these buffers."""
        return all(self._written[name] for name in names)

    def needed(self, step: _Step) -> list[Instruction]:
        """What has to come before a step: it waits no longer."""
        if not any(
            self._written[name] or (name in step.written and self._touched[name])
            for name in step.touched
        ):
            return []
        needed: list[_Step] = []
        rest: list[_Step] = []
        for before in reversed(self.steps):
            is_needed = any(after.must_follow(before) for after in (step, *needed))
            (needed if is_needed else rest).append(before)
        for before in needed:
            self._touched.subtract(before.touched)
            self._written.subtract(before.written)
        self.steps = rest[::-1]
        return [before.instruction for before in reversed(needed)]


def _step(instruction: Instruction) -> _Step:
    writes = (access for access in instruction.writes() if isinstance(access, Access))
    return _Step(
        instruction,
        touched=frozenset(access.buffer.name for access in instruction.accesses()),
        written=frozenset(access.buffer.name for access in writes),
    )


def _psum_read(instruction: Instruction) -> list[str]:
    """What it reads of PSUM, which is small: results of others are taken from there at once."""
    reads = (operand for operand in instruction.reads() if isinstance(operand, Access))
    return [read.buffer.name for read in reads if read.buffer.memory is Memory.PSUM]


def _may_wait(instruction: Instruction, written: Set[str]) -> bool:
    """Whether it only fills a tile, from others and from arrays that nothing writes to."""
    operands = (*instruction.reads(), *instruction.writes())
    return all(
        isinstance(operand, Access)
        and (
            operand.buffer.address is None
            if operand.buffer.on_chip
            else operand.buffer.kind is Kind.ARGUMENT and operand.buffer.name not in written
        )
        for operand in operands
    )
