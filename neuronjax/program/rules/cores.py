"""Kernels that the physical cores of a logical core run concurrently.

Between barriers of both cores, what one writes in HBM the other may neither read nor write.

Source: Neuron docs, "Logical NeuronCore": cores share HBM, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations

from neuronjax.program.conflicts import Touch, conflicts, touches
from neuronjax.program.control import Host
from neuronjax.program.gpsimd_engine import CoreBarrier
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Register
from neuronjax.program.program import Kernel, Node, Program, Split
from neuronjax.program.rules.site import Violation
from neuronjax.program.walk import Place, control_register, instructions, leaves, walk


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
    return ((place, node) for place, node in walk(program) if isinstance(node, Split))


def apart(program: Program) -> Iterator[Violation]:
    """Concurrent kernels write nothing in HBM that another one reads.

    The rule is silent about accesses that depend on registers or indices, and about what the one
    that reads has written itself, which is for `written_once`.
    """
    for place, names, stretches, meets in _pairs(program):
        for mine, theirs in stretches:
            sides = ((_written(mine), _read(theirs)), (_read(mine), _written(theirs)))
            met = next((pair for pair in sides if meets(*pair)), None)
            if met is not None:
                actual = f"{names} touch the same elements of HBM, in {_shared(*met, meets)}"
                yield Violation(place.path, actual, "elements of their own, or core_barrier")
                break


def written_once(program: Program) -> Iterator[Violation]:
    """Concurrent kernels write no element of HBM that another one writes.

    The rule is silent about accesses that depend on registers or indices.
    """
    for place, names, stretches, meets in _pairs(program):
        for mine, theirs in stretches:
            written = _written(mine), _written(theirs)
            if meets(*written):
                actual = f"{names} write the same elements of HBM, in {_shared(*written, meets)}"
                yield Violation(place.path, actual, "elements of their own, or core_barrier")
                break


_Meets = Callable[[list[Touch], list[Touch]], bool | None]
_Stretches = list[tuple[list[Touch], list[Touch]]]


def _pairs(program: Program) -> Iterator[tuple[Place, str, _Stretches, _Meets]]:
    """Pairs of concurrent kernels: their names, what both touch between the same two barriers, and
    whether touches conflict."""
    roots = {alias.buffer: alias.of for alias in program.aliases}

    def meets(mine: list[Touch], theirs: list[Touch]) -> bool | None:
        return conflicts(mine, theirs, lambda a, b: _root(a, roots) == _root(b, roots))

    for place, node in _splits(program):
        for first, second in combinations(node.kernels, 2):
            names = f"{first.name} and {second.name}"
            yield place, names, _stretches(first, second), meets


def _shared(mine: list[Touch], theirs: list[Touch], meets: _Meets) -> str:
    """The buffer in which touches conflict."""
    return next(own.buffer.name for own in mine for other in theirs if meets([own], [other]))


def _stretches(first: Kernel, second: Kernel) -> _Stretches:
    """What two kernels touch between the same two barriers; none if barriers are within loops,
    where the emulator alone sees races."""
    if any(_has_barriers(kernel) for kernel in (first, second)):
        return []
    return list(zip(_between(first.body), _between(second.body), strict=False))


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
        kernel = id(place.kernel)
        for name in _used(node):
            users.setdefault(name, set()).add(kernel)
        if isinstance(node, Instruction):
            written.setdefault(kernel, set()).update(_set(node))
    for place, split in _splits(program):
        own = {id(kernel): written.get(id(kernel), set()) for kernel in split.kernels}
        for name in sorted({name for names in own.values() for name in names}):
            setters = {kernel for kernel, names in own.items() if name in names}
            if len(setters) < len(own) and not users[name] <= setters:
                actual = f"${name} is set on one core of several"
                yield Violation(place.path, actual, "on each of them")


def _used(node: Node) -> Iterator[str]:
    """The registers that an instruction or a decision uses or sets."""
    if not isinstance(node, Instruction):
        register = control_register(node)
        yield from () if register is None else (register.name,)
        return
    for use in node.uses():
        if isinstance(use.operand, Register):
            yield use.operand.name
        elif isinstance(use.operand, Access):
            yield from (register.name for register in use.operand.registers)


def _set(instruction: Instruction) -> Iterator[str]:
    return (register.name for register in instruction.writes() if isinstance(register, Register))
