"""Kernels that physical cores of a logical one run beside each other.

Source: Neuron docs, "Logical NeuronCore": cores share HBM; all else is each core's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from neuronjax.program.collective import CollectiveInstruction
from neuronjax.program.conflicts import conflicts, touches
from neuronjax.program.control import Host
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Buffer, Register
from neuronjax.program.program import Program, Split
from neuronjax.program.rules.site import Violation
from neuronjax.program.walk import Place, instructions, walk


def splits(program: Program) -> Iterator[Violation]:
    """A split has at most a kernel for each core, outside of kernels."""
    most = program.target.lnc
    for place, node in _splits(program):
        if not 1 <= len(node.kernels) <= most:
            found = f"{len(node.kernels)} kernels beside each other at LNC {most}"
            yield Violation(place.path, found, f"1 to {most}")
        if place.kernel is not None:
            yield Violation(place.path, "a split in a kernel", "a split about kernels")


def _splits(program: Program) -> Iterator[tuple[Place, Split]]:
    return ((place, node) for place, node in walk(program) if isinstance(node, Split))


def apart(program: Program) -> Iterator[Violation]:
    """Kernels beside each other write nothing in HBM that another one touches.

    Where only registers or indices know what is touched, the rule keeps silent.
    """
    roots = {alias.buffer: alias.of for alias in program.aliases}
    for place, node in _splits(program):
        touched = [(kernel.name, touches(kernel.body)) for kernel in node.kernels]
        for (one, mine), (other, theirs) in combinations(touched, 2):
            if conflicts(mine, theirs, lambda a, b: _root(a, roots) == _root(b, roots)):
                found = f"{one} and {other} touch the same elements of HBM"
                yield Violation(place.path, found, "elements of their own")


def _root(buffer: Buffer, roots: dict[str, str]) -> str:
    name, seen = buffer.name, {buffer.name}
    while roots.get(name, name) not in seen:
        name = roots[name]
        seen.add(name)
    return name


def alone(program: Program) -> Iterator[Violation]:
    """Each core works for itself: with its own memories, and for no other rank or the host."""
    cores = {
        id(kernel): core for _, node in _splits(program) for core, kernel in enumerate(node.kernels)
    }
    outer = {buffer for buffer in program.buffers if buffer.on_chip}
    for place, instruction in instructions(program):
        core = cores.get(id(place.kernel))
        if core is None:
            continue
        if isinstance(instruction, CollectiveInstruction | Host):
            found = f"{instruction.mnemonic} on one core of several"
            yield Violation(place.path, found, "a kernel in no split")
        for buffer in dict.fromkeys(access.buffer for access in instruction.accesses()):
            if core and buffer in outer:
                found = f"%{buffer.name} lies in {buffer.memory.value} of the first core"
                yield Violation(place.path, found, "a buffer in HBM")


def registers(program: Program) -> Iterator[Violation]:
    """Every core has its own registers, so a register is set by all kernels of a split, or none."""
    written: dict[int, set[str]] = {}
    for place, instruction in instructions(program):
        written.setdefault(id(place.kernel), set()).update(_registers(instruction))
    for place, node in _splits(program):
        own = [written.get(id(kernel), set()) for kernel in node.kernels]
        for name in sorted({name for each in own for name in each}):
            if not all(name in each for each in own):
                found = f"${name} is set on one core of several"
                yield Violation(place.path, found, "on each of them")


def _registers(instruction: Instruction) -> Iterator[str]:
    return (each.name for each in instruction.writes() if isinstance(each, Register))
