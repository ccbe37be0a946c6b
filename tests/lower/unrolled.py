"""Kernels step by step: what every instruction touches, byte by byte, in program order.

Knows nothing of how the project analyses programs: sets of addresses, made by counting.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from neuronjax.program.element_types import bytes_of
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Register
from neuronjax.program.program import Kernel, Loop, Node

Byte = tuple[object, ...]


@dataclass(frozen=True, eq=False)
class Step:
    """An instruction at values of the loop variables."""

    index: int
    instruction: Instruction
    values: Mapping[str, int]

    @property
    def reads(self) -> set[Byte]:
        return self._bytes(self.instruction.reads())

    @property
    def writes(self) -> set[Byte]:
        return self._bytes(self.instruction.writes())

    def _bytes(self, operands: tuple[Access | Register, ...]) -> set[Byte]:
        found: set[Byte] = set()
        for operand in operands:
            if isinstance(operand, Register):
                found.add(("register", operand.name))
            else:
                found |= {byte for byte, _ in touched(operand, self.values)}
        return found


def touched(access: Access, values: Mapping[str, int]) -> Iterator[tuple[Byte, Byte]]:
    """Bytes in memory, each with its place in the buffer."""
    buffer, size = access.buffer, bytes_of(access.buffer.dtype)
    slot = access.slot.at(values) % buffer.slots
    start = access.offset.at(values)
    lane = access.partition.at(values)
    walk = [
        range(0, dim.stride * dim.size, dim.stride) if dim.stride else [0] for dim in access.dims
    ]
    elements = {start + sum(steps) for steps in itertools.product(*walk)}
    for element in elements:
        for byte in range(element * size, (element + 1) * size):
            for each in range(lane, lane + access.partitions):
                inside = (buffer.name, slot, each, byte)
                if buffer.address is None:
                    yield ("unallocated", *inside), inside
                else:
                    at = buffer.address + slot * buffer.stride + byte
                    yield (buffer.memory, each + buffer.partition, at), inside


def steps(kernel: Kernel) -> list[Step]:
    """All that the kernel does, in program order."""
    return [
        Step(index, node, values) for index, (node, values) in enumerate(_steps(kernel.body, {}))
    ]


def _steps(
    nodes: tuple[Node, ...], values: dict[str, int]
) -> Iterator[tuple[Instruction, dict[str, int]]]:
    for node in nodes:
        if isinstance(node, Loop):
            assert isinstance(node.trips, int)
            for value in range(node.trips):
                yield from _steps(node.body, {**values, node.variable: value})
        else:
            assert isinstance(node, Instruction)
            yield node, values
