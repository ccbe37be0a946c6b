"""Kernels that the physical cores of a logical core run concurrently.

Between barriers of both cores, what one writes in HBM the other may neither read nor write.

Source: Neuron docs, "Logical NeuronCore": cores share HBM, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

from neuronjax.program.conflicts import Touch, conflicts, touches, touches_of
from neuronjax.program.control import Host
from neuronjax.program.gpsimd_engine import CoreBarrier
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Buffer, Register
from neuronjax.program.program import Kernel, Node, Program, Split
from neuronjax.program.rules.site import Violation
from neuronjax.program.walk import (
    Place,
    compounds,
    control_register,
    instructions,
    leaves,
    walk,
)


def splits(program: Program) -> Iterator[Violation]:
    """A split has at most one kernel per core, and is not in a kernel."""
    most = program.target.lnc
    for place, node in _splits(program):
        if not 1 <= len(node.kernels) <= most:
            actual = f"{len(node.kernels)} concurrent kernels at LNC {most}"
            yield Violation(place.path, actual, f"1 to {most}")
        if place.kernel is not None:
            yield Violation(place.path, "a split in a kernel", "kernels in a split")


def _splits(program: Program) -> Iterator[tuple[Place, Split]]:
    return ((place, node) for place, node in compounds(program) if isinstance(node, Split))


def apart(program: Program) -> Iterator[Violation]:
    """Concurrent kernels write nothing in HBM that another one reads.

    The rule is silent about accesses that depend on registers or indices, and about what the one
    that reads has written itself, which is for `written_once`.
    """
    for pair in _pairs(program):
        for mine, theirs in pair.stretches:
            sides = ((_written(mine), _read(theirs)), (_read(mine), _written(theirs)))
            met = next((side for side in sides if pair.meets(*side)), None)
            if met is not None:
                yield pair.violation(program, "touches", *met)
                break


def written_once(program: Program) -> Iterator[Violation]:
    """Concurrent kernels write no element of HBM that another one writes.

    The rule is silent about accesses that depend on registers or indices.
    """
    for pair in _pairs(program):
        for mine, theirs in pair.stretches:
            written = _written(mine), _written(theirs)
            if pair.meets(*written):
                yield pair.violation(program, "writes", *written)
                break


@dataclass(frozen=True)
class _Pair:
    """Two concurrent kernels."""

    first: Kernel
    second: Kernel
    #: Whether touches conflict.
    meets: Callable[[list[Touch], list[Touch]], bool | None]

    @property
    def stretches(self) -> Iterator[tuple[list[Touch], list[Touch]]]:
        """What both touch between the same two barriers; nothing if barriers are within loops,
        where the emulator alone sees races."""
        if not _has_barriers(self.first) and not _has_barriers(self.second):
            yield from zip(_between(self.first.body), _between(self.second.body), strict=False)

    def violation(
        self, program: Program, verb: str, mine: list[Touch], theirs: list[Touch]
    ) -> Violation:
        """The first of these touches that conflict, and where."""
        own, other = next((a, b) for a in mine for b in theirs if self.meets([a], [b]))
        place, beside = (
            _place(program, kernel, touched)
            for kernel, touched in ((self.first, own), (self.second, other))
        )
        actual = f"{verb} the same elements of HBM, in {own.buffer.name}, as {beside}"
        return Violation(place, actual, "elements of their own, or core_barrier")


def _place(program: Program, kernel: Kernel, touched: Touch) -> str:
    """The path of the first instruction of a kernel that touches so."""
    return next(
        place.path
        for place, instruction in instructions(program)
        if place.kernel is kernel and touched in touches_of(instruction, place.trips)
    )


def _pairs(program: Program) -> Iterator[_Pair]:
    roots = {alias.buffer: alias.of for alias in program.aliases}

    def meets(mine: list[Touch], theirs: list[Touch]) -> bool | None:
        return conflicts(mine, theirs, lambda a, b: _root(a, roots) == _root(b, roots))

    for _, node in _splits(program):
        for first, second in combinations(node.kernels, 2):
            yield _Pair(first, second, meets)


def _has_barriers(kernel: Kernel) -> bool:
    """Whether control of a kernel has barriers in its body."""
    control = [node for node in kernel.body if not isinstance(node, Instruction)]
    return any(isinstance(leaf, CoreBarrier) for leaf in leaves(control))


def _between(nodes: Iterable[Node]) -> Iterator[list[Touch]]:
    """What nodes touch before the first barrier, between it and the second, and so on."""
    stretch: list[Node] = []
    for node in nodes:
        if isinstance(node, CoreBarrier):
            yield touches(stretch)
            stretch = []
        else:
            stretch.append(node)
    yield touches(stretch)


def _written(touched: list[Touch]) -> list[Touch]:
    return [touch for touch in touched if touch.is_write]


def _read(touched: list[Touch]) -> list[Touch]:
    """What a kernel reads and has not written before."""
    return [
        touch
        for number, touch in enumerate(touched)
        if not touch.is_write and not _may_give(touched[:number], touch)
    ]


def _may_give(before: list[Touch], read: Touch) -> bool:
    """Whether all that is read may be what earlier writes have left."""
    writes = [touch for touch in _written(before) if touch.buffer.name == read.buffer.name]
    if any(write.elements is None for write in writes):
        return True
    if read.elements is None:
        return False
    reached = read.elements.first
    for write in sorted(writes, key=lambda write: write.elements or ()):
        if write.elements and write.length is not None and write.elements.first <= reached:
            reached = max(reached, write.elements.first + write.length)
    return read.elements.last < reached


def _root(buffer: Buffer, roots: dict[str, str]) -> str:
    name, seen = buffer.name, {buffer.name}
    while roots.get(name, name) not in seen:
        name = roots[name]
        seen.add(name)
    return name


def alone(program: Program) -> Iterator[Violation]:
    """A core of a split uses its own on-chip memory only, and not the host."""
    cores = {
        id(kernel): core for _, node in _splits(program) for core, kernel in enumerate(node.kernels)
    }
    outer = {buffer for buffer in program.buffers if buffer.on_chip}
    for place, instruction in instructions(program):
        core = cores.get(id(place.kernel))
        if core is None:
            continue
        if isinstance(instruction, Host):
            actual = f"{instruction.mnemonic} on one core of several"
            yield Violation(place.path, actual, "a kernel outside splits")
        for buffer in dict.fromkeys(access.buffer for access in instruction.accesses()):
            if core and buffer in outer:
                actual = f"%{buffer.name} lies in {buffer.memory.value} of the first core"
                yield Violation(place.path, actual, "a buffer in HBM")


def registers(program: Program) -> Iterator[Violation]:
    """All kernels of a split set a register or none does, since cores have their own registers.

    A register that is used nowhere else is a kernel's own.
    """
    written: dict[int, set[str]] = {}
    users: dict[str, set[int]] = {}
    for place, node in walk(program):
        used, kernel = _used(node), id(place.kernel)
        for register in used:
            users.setdefault(register.name, set()).add(kernel)
        if used and isinstance(node, Instruction):
            written.setdefault(kernel, set()).update(_set(node))
    for place, split in _splits(program):
        own = {id(kernel): written.get(id(kernel), set()) for kernel in split.kernels}
        for name in sorted({name for names in own.values() for name in names}):
            setters = {kernel for kernel, names in own.items() if name in names}
            if len(setters) < len(own) and not users[name] <= setters:
                actual = f"${name} is set on one core of several"
                yield Violation(place.path, actual, "on each of them")


def _used(node: Node) -> tuple[Register, ...]:
    """The registers that an instruction or a decision uses or sets."""
    if not isinstance(node, Instruction):
        register = control_register(node)
        return () if register is None else (register,)
    return node.registers()


def _set(instruction: Instruction) -> Iterator[str]:
    return (register.name for register in instruction.writes() if isinstance(register, Register))
