"""Seeded faults in compiled programs: what a broken compiler would produce.

A `Fault` changes one thing at one place. Every fault must be reported: by `verify`, or, when the
program runs in dataflow order, by the detectors of races, uninitialised reads and deadlocks.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from neuronjax.lower.write.rebuild import on_buffers
from neuronjax.machine.specs import Engine
from neuronjax.program.affine import Affine
from neuronjax.program.collective import GroupCollective
from neuronjax.program.dma import DmaInstruction
from neuronjax.program.instruction import Instruction, Wait
from neuronjax.program.operand import Access, Buffer, Dim, Memory
from neuronjax.program.program import Kernel, Loop, Node, Program
from neuronjax.program.tensor_engine import Matmul
from neuronjax.program.walk import instructions, kernels
from tests.lower.schedule import races

Change = Callable[[Instruction], Instruction]


def replaced(program: Program, index: int, change: Change) -> Program:
    """The program with its `index`-th instruction changed, in the order of `walk`."""
    count = -1

    def visit(node: Node) -> Node:
        nonlocal count
        if isinstance(node, Instruction):
            count += 1
            return change(node) if count == index else node
        if isinstance(node, Loop | Kernel):
            return dataclasses.replace(node, body=tuple(map(visit, node.body)))
        return node

    functions = tuple(
        dataclasses.replace(each, body=tuple(map(visit, each.body))) for each in program.functions
    )
    return dataclasses.replace(program, functions=functions, body=tuple(map(visit, program.body)))


def _at(program: Program, wanted: Callable[[Instruction], bool], rng: random.Random) -> int:
    """The number of a random instruction of which something holds."""
    found = [i for i, (_, each) in enumerate(instructions(program)) if wanted(each)]
    return rng.choice(found)


def wait_removed(program: Program, rng: random.Random) -> Program:
    index = _at(program, lambda each: bool(each.waits), rng)

    def change(each: Instruction) -> Instruction:
        gone = rng.randrange(len(each.waits))
        waits = tuple(wait for i, wait in enumerate(each.waits) if i != gone)
        return dataclasses.replace(each, waits=waits)

    return replaced(program, index, change)


def wait_too_early(program: Program, rng: random.Random) -> Program:
    """For one signal less than it takes."""
    index = _at(program, lambda each: bool(each.waits), rng)

    def change(each: Instruction) -> Instruction:
        first, *rest = each.waits
        step = 16 if first.count.base % 16 == 0 else 1
        return dataclasses.replace(each, waits=(Wait(first.semaphore, first.count + -step), *rest))

    return replaced(program, index, change)


def wait_for_ever(program: Program, rng: random.Random) -> Program:
    index = _at(program, lambda each: bool(each.waits), rng)

    def change(each: Instruction) -> Instruction:
        first, *rest = each.waits
        late = Wait(first.semaphore, first.count + 100_000)
        return dataclasses.replace(each, waits=(late, *rest))

    return replaced(program, index, change)


def signal_removed(program: Program, rng: random.Random) -> Program:
    """A signal that an instruction of the same kernel waits for later on."""
    listed = list(instructions(program))
    needed = []
    for index, (place, each) in enumerate(listed):
        later = {
            wait.semaphore.name
            for other, after in listed[index + 1 :]
            if other.kernel is place.kernel
            for wait in after.waits
        }
        if any(signal.semaphore.name in later for signal in each.signals):
            needed.append(index)
    index = rng.choice(needed)
    return replaced(program, index, lambda each: dataclasses.replace(each, signals=()))


def start_dropped(program: Program, rng: random.Random) -> Program:
    index = _at(program, lambda each: isinstance(each, Matmul), rng)
    return replaced(program, index, lambda each: dataclasses.replace(each, start=False))  # type: ignore[call-arg]


def _changed_access(
    program: Program, rng: random.Random, wanted: Callable[[Access], bool], change: Any
) -> Program:
    index = _at(program, lambda each: any(map(wanted, each.accesses())), rng)

    def alter(each: Instruction) -> Instruction:
        done = False

        def one(operand: Any) -> Any:
            nonlocal done
            if not done and isinstance(operand, Access) and wanted(operand):
                done = True
                return change(operand)
            return operand

        return each.with_operands(one)

    return replaced(program, index, alter)


def pattern_too_long(program: Program, rng: random.Random) -> Program:
    """One more step of the innermost dimension than the buffer has room for."""

    def longer(access: Access) -> Access:
        last = access.dims[-1]
        size = access.buffer.elements // max(1, abs(last.stride)) + 1
        return dataclasses.replace(access, dims=(*access.dims[:-1], Dim(last.stride, size)))

    return _changed_access(program, rng, lambda a: bool(a.dims) and a.dims[-1].stride != 0, longer)


def offset_outside(program: Program, rng: random.Random) -> Program:
    def outside(access: Access) -> Access:
        assert isinstance(access.offset, Affine)
        return dataclasses.replace(access, offset=access.offset + access.buffer.elements)

    return _changed_access(program, rng, lambda a: isinstance(a.offset, Affine), outside)


def partitions_outside(program: Program, rng: random.Random) -> Program:
    def more(access: Access) -> Access:
        return dataclasses.replace(access, partitions=access.buffer.partitions + 1)

    return _changed_access(program, rng, lambda a: a.buffer.on_chip, more)


def wrong_start_partition(program: Program, rng: random.Random) -> Program:
    def moved(access: Access) -> Access:
        return dataclasses.replace(access, partition=access.partition + 1)

    return _changed_access(
        program, rng, lambda a: a.buffer.on_chip and a.partitions == a.buffer.partitions, moved
    )


def group_without_a_rank(program: Program, rng: random.Random) -> Program:
    index = _at(program, lambda each: isinstance(each, GroupCollective), rng)

    def change(each: Instruction) -> Instruction:
        assert isinstance(each, GroupCollective)
        first, *rest = each.groups
        return dataclasses.replace(each, groups=(first[1:], *rest))

    return replaced(program, index, change)


def rank_in_two_groups(program: Program, rng: random.Random) -> Program:
    index = _at(program, lambda each: isinstance(each, GroupCollective), rng)

    def change(each: Instruction) -> Instruction:
        assert isinstance(each, GroupCollective)
        first, *rest = each.groups
        return dataclasses.replace(each, groups=((first[-1], *first[1:]), *rest))

    return replaced(program, index, change)


def _with_buffer(program: Program, kernel: Kernel, old: Buffer, new: Buffer) -> Program:
    """The program with a tile of one kernel declared otherwise."""

    def operand(each: Any) -> Any:
        same = isinstance(each, Access) and each.buffer == old
        return dataclasses.replace(each, buffer=new) if same else each

    def inside(node: Node) -> Node:
        if isinstance(node, Instruction):
            return node.with_operands(operand)
        if isinstance(node, Loop):
            return dataclasses.replace(node, body=tuple(map(inside, node.body)))
        return node

    def visit(node: Node) -> Node:
        if isinstance(node, Loop):
            return dataclasses.replace(node, body=tuple(map(visit, node.body)))
        if node is not kernel:
            return node
        buffers = tuple(new if each == old else each for each in kernel.buffers)
        body = tuple(map(inside, kernel.body))
        return dataclasses.replace(kernel, buffers=buffers, body=body)

    functions = tuple(
        dataclasses.replace(each, body=tuple(map(visit, each.body))) for each in program.functions
    )
    return dataclasses.replace(program, functions=functions, body=tuple(map(visit, program.body)))


def _tiles(program: Program) -> Iterator[tuple[Kernel, Buffer, Buffer]]:
    """Pairs of tiles of a kernel of which the second is used while the first holds a value."""
    for _, kernel in kernels(program):
        uses: dict[str, list[int]] = {}
        for position, (place, each) in enumerate(instructions(program)):
            if place.kernel is kernel:
                for access in each.accesses():
                    uses.setdefault(access.buffer.name, []).append(position)
        on_chip = [each for each in kernel.buffers if each.on_chip and each.name in uses]
        for one in on_chip:
            for other in on_chip:
                if one is other or one.memory is not other.memory:
                    continue
                (first, *_), (begin, *_) = uses[one.name], uses[other.name]
                if first < begin < uses[one.name][-1] and one.address != other.address:
                    yield kernel, one, other


def tiles_overlap(program: Program, rng: random.Random) -> Program:
    """One tile is put on the address of another that is in use meanwhile."""
    kernel, one, other = rng.choice(list(_tiles(program)))
    return _with_buffer(program, kernel, one, dataclasses.replace(one, address=other.address))


def slots_lost(program: Program, rng: random.Random) -> Program:
    """A tile that was to be two is one: what the next iteration writes is still read."""
    found = [
        (kernel, each)
        for _, kernel in kernels(program)
        for each in kernel.buffers
        if each.slots > 1
    ]
    for kernel, tile in rng.sample(found, len(found)):
        one = dataclasses.replace(tile, slots=1)
        if races(on_buffers(kernel, {tile.name: one})):
            return _with_buffer(program, kernel, tile, one)
    raise AssertionError("no tile needs its slots")


def psum_too_large(program: Program, rng: random.Random) -> Program:
    found = [
        (kernel, each)
        for _, kernel in kernels(program)
        for each in kernel.buffers
        if each.memory is Memory.PSUM
    ]
    kernel, tile = rng.choice(found)
    return _with_buffer(program, kernel, tile, dataclasses.replace(tile, slots=64))


def wrong_engine(program: Program, rng: random.Random) -> Program:
    index = _at(
        program,
        lambda each: (
            any(f.name == "engine" for f in dataclasses.fields(each))
            and not isinstance(each, DmaInstruction)
        ),
        rng,
    )
    wrong: Mapping[str, Any] = {"engine": Engine.TENSOR}
    return replaced(program, index, lambda each: dataclasses.replace(each, **wrong))


FAULTS: dict[str, Callable[[Program, random.Random], Program]] = {
    "wait removed": wait_removed,
    "wait too early": wait_too_early,
    "wait forever": wait_for_ever,
    "signal removed": signal_removed,
    "start flag dropped": start_dropped,
    "pattern too long": pattern_too_long,
    "offset outside": offset_outside,
    "partitions outside": partitions_outside,
    "wrong start partition": wrong_start_partition,
    "group without a rank": group_without_a_rank,
    "rank in two groups": rank_in_two_groups,
    "tiles overlap": tiles_overlap,
    "slots lost": slots_lost,
    "PSUM too large": psum_too_large,
    "wrong engine": wrong_engine,
}
"""Name -> what goes wrong."""
