"""Sums in PSUM, to which one product after the other is added.

A group of products ends with the last one before something else touches the sum. A product that is
added afterwards resumes it: the array adds to what lies there, and other engines access PSUM like
any memory (Neuron docs, "Trainium/Inferentia2 architecture guide").
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from neuronjax.nki.tracing import Trace
from neuronjax.program.footprint import footprint
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Memory
from neuronjax.program.tensor_engine import Matmul, MatmulMX


def with_groups(instructions: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """The instructions, in which a product that the next one is added to does not end its group."""
    groups = _groups(instructions)
    resumed = {pause.sum for pause in groups.pauses}
    return tuple(
        instruction.in_group(
            stop=number not in groups.continued,
            resumes=bool(resumed) and instruction.dst in resumed,
        )
        if isinstance(instruction, Matmul | MatmulMX)
        else instruction
        for number, instruction in enumerate(instructions)
    )


def unfinished(trace: Trace) -> Iterator[tuple[str, str]]:
    """Lines that read a sum to which a product is added later, and what to mind there."""

    def line(number: int) -> str:
        return trace.lines[trace.instructions[number].part or 0]

    for pause in _groups(trace.instructions).pauses:
        if pause.reads:
            yield (
                line(pause.number),
                f"reads a sum in PSUM to which {line(pause.adder)} adds afterwards; if that is "
                "another sum, give it a tile of its own, or begin it with accumulate=False",
            )


@dataclass(frozen=True)
class _Pause:
    """An instruction that touches a sum between two products."""

    number: int
    sum: Access
    #: The product that comes next.
    adder: int
    reads: bool


@dataclass(frozen=True)
class _Groups:
    """Products to which the next one is added, and what touches sums in between."""

    continued: set[int] = dataclasses.field(default_factory=set)
    pauses: list[_Pause] = dataclasses.field(default_factory=list)


def _groups(instructions: Sequence[Instruction]) -> _Groups:
    groups = _Groups()
    adders: dict[Access, int] = {}
    for number in reversed(range(len(instructions))):
        instruction = instructions[number]
        if isinstance(instruction, Matmul | MatmulMX):
            if adders.pop(instruction.dst, None) is not None:
                groups.continued.add(number)
            if not instruction.start:
                adders[instruction.dst] = number
        elif adders:
            for touched, reads in _touched(instruction, adders).items():
                groups.pauses.append(_Pause(number, touched, adders.pop(touched), reads))
    return groups


def _touched(instruction: Instruction, sums: Mapping[Access, int]) -> dict[Access, bool]:
    """The sums that an instruction touches, and whether it reads them."""
    touched: dict[Access, bool] = {}
    for use in instruction.uses():
        operand = use.operand
        if isinstance(operand, Access) and operand.memory is Memory.PSUM:
            for place in sums:
                if operand.buffer == place.buffer and _meet(operand, place):
                    touched[place] = touched.get(place, False) or use.role.is_read
    return touched


def _meet(first: Access, second: Access) -> bool:
    return first == second or footprint(first, {}).meets(footprint(second, {}))
