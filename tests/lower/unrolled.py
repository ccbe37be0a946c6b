"""Kernels step by step: what every instruction touches, byte by byte, in program order.

Knows nothing of how the project analyses programs: addresses are made by counting.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from neuronjax.program.element_types import bytes_of
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Register
from neuronjax.program.program import Kernel, Loop, Node, Program
from neuronjax.program.walk import kernels

Byte = tuple[object, ...]


@dataclass(frozen=True, eq=False)
class Region:
    """Runs of bytes, first and last of each, in some partitions of a memory."""

    space: object
    lanes: range
    runs: np.ndarray

    def meets(self, other: Region) -> bool:
        """Whether some byte is in both."""
        if self.space != other.space:
            return False
        if self.lanes.start >= other.lanes.stop or other.lanes.start >= self.lanes.stop:
            return False
        behind = np.searchsorted(other.runs[:, 1], self.runs[:, 0])
        there = behind < len(other.runs)
        return bool((other.runs[behind[there], 0] <= self.runs[there, 1]).any())


@dataclass(eq=False)
class Step:
    """An instruction at values of the loop variables."""

    index: int
    instruction: Instruction
    values: Mapping[str, int]

    @cached_property
    def reads(self) -> list[Region]:
        return [region(each, self.values) for each in self.instruction.reads()]

    @cached_property
    def writes(self) -> list[Region]:
        return [region(each, self.values) for each in self.instruction.writes()]

    def conflicts(self, other: Step) -> bool:
        """Whether one writes what the other reads or writes."""
        return (
            _meet(self.writes, other.writes)
            or _meet(self.writes, other.reads)
            or _meet(self.reads, other.writes)
        )


def _meet(some: list[Region], others: list[Region]) -> bool:
    return any(one.meets(two) for one in some for two in others)


def region(operand: Access | Register, values: Mapping[str, int]) -> Region:
    """What an operand stands for."""
    if isinstance(operand, Register):
        return Region(("register", operand.name), range(1), np.array([[0, 0]]))
    buffer, size = operand.buffer, bytes_of(operand.buffer.dtype)
    slot = operand.slot.at(values) % buffer.slots
    runs = np.array([[0, 0]]) + operand.offset.at(values)
    for dim in sorted(operand.dims, key=lambda dim: abs(dim.stride)):
        starts = np.arange(dim.size)[:, None, None] * dim.stride
        runs = _joined((runs + starts).reshape(-1, 2))
    runs = runs * size + [0, size - 1]
    lane = operand.partition.at(values)
    if buffer.address is None:
        return Region(
            (buffer.memory, buffer.name, slot), range(lane, lane + operand.partitions), runs
        )
    lane += buffer.partition
    at = buffer.address + slot * buffer.stride
    return Region(buffer.memory, range(lane, lane + operand.partitions), runs + at)


def _joined(runs: np.ndarray) -> np.ndarray:
    """Runs in ascending order, those that touch as one."""
    runs = runs[np.argsort(runs[:, 0], kind="stable")]
    ends = np.maximum.accumulate(runs[:, 1])
    new = np.concatenate([[True], runs[1:, 0] > ends[:-1] + 1])
    last = np.concatenate([np.flatnonzero(new)[1:] - 1, [len(runs) - 1]])
    return np.stack([runs[new, 0], ends[last]], axis=1)


def touched(access: Access, values: Mapping[str, int]) -> Iterator[tuple[Byte, Byte]]:
    """Bytes in memory, each with its place in the buffer."""
    buffer, size = access.buffer, bytes_of(access.buffer.dtype)
    slot = access.slot.at(values) % buffer.slots
    start, lane = access.offset.at(values), access.partition.at(values)
    walk = [
        range(0, dim.stride * dim.size, dim.stride) if dim.stride else [0] for dim in access.dims
    ]
    for element in {start + sum(steps) for steps in itertools.product(*walk)}:
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


def _bytes(step: Step, operands: tuple[object, ...]) -> Iterator[list[Byte]]:
    """The bytes of each operand in HBM or SBUF, in order of their places in the tensor."""
    for each in operands:
        if isinstance(each, Access):
            pairs = sorted(touched(each, step.values), key=lambda pair: pair[1][1:])
            yield [byte for byte, _ in pairs]


def results(program: Program) -> dict[Byte, int]:
    """What HBM holds in the end, if instructions give different values for different operands."""
    memory: dict[Byte, int] = {}
    outer = {buffer.name for buffer in program.buffers}
    ((_, kernel),) = kernels(program)
    for step in steps(kernel):
        read = [
            [memory.get(byte, hash(byte) if byte[1] in outer else 0) for byte in each]
            for each in _bytes(step, step.instruction.reads())
        ]
        kind = step.instruction.mnemonic
        for number, written in enumerate(_bytes(step, step.instruction.writes())):
            for place, byte in enumerate(written):
                memory[byte] = hash((kind, number, place, str(read)))
    return {byte: value for byte, value in memory.items() if byte[1] in outer}
