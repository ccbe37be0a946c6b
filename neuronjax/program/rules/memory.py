"""Buffers: that they fit, are aligned, and share memory only where it is meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from neuronjax.program.element_types import bytes_of
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Buffer, Kind, Memory
from neuronjax.program.program import Call, Loop, Node, Program, Split, While
from neuronjax.program.rules.site import Violation
from neuronjax.program.walk import buffers, children, kernels


def _limits(program: Program) -> Mapping[Memory, tuple[int, int]]:
    """Partitions and bytes in each of them that a program may use."""
    core, chip = program.target.core, program.target.chip_spec
    return {
        Memory.HBM: (1, chip.logical_core_hbm_bytes(program.target.lnc)),
        Memory.SBUF: (core.sbuf.partitions, core.sbuf.usable_partition_bytes),
        Memory.PSUM: (core.psum.partitions, core.psum.usable_partition_bytes),
    }


def capacity(program: Program) -> Iterator[Violation]:
    """A buffer ends within its memory, or at least fits into it if it has no address yet."""
    limits = _limits(program)
    for place, buffer in buffers(program):
        partitions, size = limits[buffer.memory]
        end = (buffer.address or 0) + buffer.extent
        if end > size:
            found = f"{buffer.name} ends at byte {end} of {buffer.memory.value}"
            yield Violation(place.path, found, f"{size} bytes")
        if buffer.partition + buffer.partitions > partitions:
            found = f"{buffer.name} ends at partition {buffer.partition + buffer.partitions}"
            yield Violation(place.path, found, f"{partitions} partitions")


def alignment(program: Program) -> Iterator[Violation]:
    """Addresses are in elements: every slot starts at a multiple of the element's size."""
    for place, buffer in buffers(program):
        size = bytes_of(buffer.dtype)
        if (buffer.address or 0) % size or buffer.stride % size:
            yield Violation(
                place.path,
                f"{buffer.name} of {buffer.dtype.name} at byte {buffer.address}, slots"
                f" {buffer.stride} bytes apart",
                f"multiples of {size}",
            )


def slots(program: Program) -> Iterator[Violation]:
    """Slots of one buffer do not overlap."""
    for place, buffer in buffers(program):
        if buffer.slots > 1 and buffer.stride < buffer.slot_bytes:
            found = f"slots of {buffer.name} begin every {buffer.stride} bytes"
            yield Violation(place.path, found, f"at least {buffer.slot_bytes} bytes")


def constants(program: Program) -> Iterator[Violation]:
    """Constants have their bytes, other buffers have none."""
    for place, buffer in buffers(program):
        wanted = buffer.slot_bytes if buffer.kind is Kind.CONSTANT else None
        given = None if buffer.data is None else len(buffer.data)
        if given != wanted:
            found = f"{buffer.name} ({buffer.kind.value}) has data of {given} bytes"
            yield Violation(place.path, found, f"{wanted} bytes")


def overlap(program: Program) -> Iterator[Violation]:
    """Buffers of which both are live share no bytes, unless they are declared aliases."""
    declared = {frozenset((alias.buffer, alias.of)) for alias in program.aliases}
    for path, lives, settled in _scopes(program):
        for one, other in _neighbours(lives):
            if frozenset((one.name, other.name)) in declared or {one, other} <= settled:
                continue
            first, second = lives[one], lives[other]
            if _share_bytes(one, other) and first[0] <= second[1] and second[0] <= first[1]:
                found = f"{one.name} and {other.name} overlap in {one.memory.value}"
                yield Violation(path, found, "an alias, or other addresses")


Life = tuple[int, int]
"""First and last position in program order at which a buffer holds something."""


def _neighbours(lives: Mapping[Buffer, Life]) -> Iterator[tuple[Buffer, Buffer]]:
    """Pairs of buffers whose bytes may overlap: those that begin before the end of another."""
    order = {buffer: number for number, buffer in enumerate(lives)}
    placed = [buffer for buffer in lives if buffer.address is not None]
    found: list[tuple[Buffer, Buffer]] = []
    for memory in Memory:
        open_: list[Buffer] = []
        here = [buffer for buffer in placed if buffer.memory is memory]
        for buffer in sorted(here, key=lambda each: each.address or 0):
            start = buffer.address or 0
            open_ = [each for each in open_ if (each.address or 0) + each.extent > start]
            found += [tuple(sorted((each, buffer), key=order.__getitem__)) for each in open_]  # type: ignore[misc]
            open_.append(buffer)
    yield from sorted(found, key=lambda pair: (order[pair[0]], order[pair[1]]))


def _scopes(program: Program) -> Iterator[tuple[str, dict[Buffer, Life], set[Buffer]]]:
    """Buffers that may meet, and those among them that have been compared with each other before.

    They are those of the program, and those of each kernel with the program's on chip.
    """
    outer = _lives(program.body, program.buffers, whole=(Kind.ARGUMENT, Kind.RESULT, Kind.CONSTANT))
    yield program.name, outer, set()
    held = {buffer: life for buffer, life in outer.items() if buffer.on_chip}
    positions: dict[int, list[int]] = {}
    if held:
        for position, node in _ordered(program.body):
            positions.setdefault(id(node), []).append(position)
    for place, kernel in kernels(program):
        reached = {
            buffer: (0, _AT_THE_END)
            for buffer, (first, last) in held.items()
            if any(first <= position <= last for position in positions.get(id(kernel), ()))
        }
        yield place.path, _lives(kernel.body, kernel.buffers) | reached, set(reached)


_AT_THE_END = 1 << 62


def _ordered(nodes: tuple[Node, ...], start: int = 0) -> Iterator[tuple[int, Node]]:
    """Nodes with their positions in program order; a node's position precedes its children's."""
    position = start
    for node in nodes:
        yield position, node
        inner = list(_ordered(children(node), position + 1))
        yield from inner
        position += 1 + len(inner)


def _lives(
    nodes: tuple[Node, ...], known: tuple[Buffer, ...], whole: tuple[Kind, ...] = ()
) -> dict[Buffer, Life]:
    """Life of each used buffer; those of kinds `whole` live from beginning to end.

    What outlives an iteration of a loop lives as long as the loop: a buffer that is used outside of
    it as well, or that the loop's body reads before it writes it.
    """
    used = _used(nodes, 0).uses
    lives: dict[Buffer, Life] = {}
    for buffer in known:
        if buffer.kind in whole:
            lives[buffer] = (0, _AT_THE_END)
        elif buffer in used:
            lives[buffer] = used[buffer].life
    return lives


@dataclass(slots=True)
class _Use:
    """Where nodes use a buffer, and whether the first of them reads it."""

    life: Life
    is_read_first: bool


@dataclass(slots=True)
class _Uses:
    """All buffers that nodes use, and how many nodes there are, those within them included."""

    uses: dict[Buffer, _Use]
    size: int


def _used(nodes: tuple[Node, ...], start: int) -> _Uses:
    found: dict[Buffer, list[tuple[_Use, Life | None]]] = {}
    position = start
    for node in nodes:
        inner = _uses_of(node, position)
        extent = (position, position + inner.size - 1)
        for buffer, use in inner.uses.items():
            whole = extent if isinstance(node, Split) else None
            if isinstance(node, Loop | While):
                carried = use.is_read_first
                found.setdefault(buffer, []).append((use, extent))
                if carried:
                    use.life = extent
                continue
            if whole is not None:
                use.life = whole
            found.setdefault(buffer, []).append((use, None))
        position += inner.size
    uses = {buffer: _together(parts) for buffer, parts in found.items()}
    return _Uses(uses, position - start)


def _together(parts: list[tuple[_Use, Life | None]]) -> _Use:
    """The use of a buffer by several nodes: in loops beside others it lives as long as the loop."""
    lives = [loop if loop is not None and len(parts) > 1 else use.life for use, loop in parts]
    life = min(first for first, _ in lives), max(last for _, last in lives)
    return _Use(life, parts[0][0].is_read_first)


def _uses_of(node: Node, position: int) -> _Uses:
    """What one node uses; of a call nobody knows whether it reads first."""
    here = (position, position)
    if isinstance(node, Instruction):
        uses: dict[Buffer, _Use] = {}
        for use in node.uses():
            buffer = getattr(use.operand, "buffer", None)
            if buffer is not None:
                reads = use.role.is_read and use.unless is False
                known = uses.setdefault(buffer, _Use(here, reads))
                known.is_read_first |= reads
        return _Uses(uses, 1)
    if isinstance(node, Call):
        return _Uses({buffer: _Use(here, False) for buffer in node.arguments}, 1)
    inner = _used(children(node), position + 1)
    return _Uses(inner.uses, inner.size + 1)


def _share_bytes(one: Buffer, other: Buffer) -> bool:
    if one.memory is not other.memory or one.address is None or other.address is None:
        return False
    meet = one.address < other.address + other.extent and other.address < one.address + one.extent
    if not one.on_chip:
        return meet
    return (
        meet
        and one.partition < other.partition + other.partitions
        and other.partition < one.partition + one.partitions
    )
