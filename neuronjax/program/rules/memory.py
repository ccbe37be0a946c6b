"""Buffers fit, are aligned, and share memory only where that is declared."""

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
    """Memory -> partitions, and bytes per partition, that a program may use."""
    core, chip = program.target.core, program.target.chip_spec
    return {
        Memory.HBM: (1, chip.logical_core_hbm_bytes(program.target.lnc)),
        Memory.SBUF: (core.sbuf.partitions, core.sbuf.usable_partition_bytes),
        Memory.PSUM: (core.psum.partitions, core.psum.usable_partition_bytes),
    }


def capacity(program: Program) -> Iterator[Violation]:
    """A buffer ends within its memory; without an address, it is no larger than its memory."""
    limits = _limits(program)
    for place, buffer in buffers(program):
        partitions, size = limits[buffer.memory]
        end = (buffer.address or 0) + buffer.extent
        if end > size:
            actual = f"{buffer.name} ends at byte {end} of {buffer.memory.value}"
            yield Violation(place.path, actual, f"{size} bytes")
        if buffer.partition + buffer.partitions > partitions:
            actual = f"{buffer.name} ends at partition {buffer.partition + buffer.partitions}"
            yield Violation(place.path, actual, f"{partitions} partitions")


def alignment(program: Program) -> Iterator[Violation]:
    """Every slot starts at a multiple of the element size, as addresses count elements."""
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
            actual = f"slots of {buffer.name} begin every {buffer.stride} bytes"
            yield Violation(place.path, actual, f"at least {buffer.slot_bytes} bytes")


def constants(program: Program) -> Iterator[Violation]:
    """Constants have data of their size; other buffers have none."""
    for place, buffer in buffers(program):
        wanted = buffer.slot_bytes if buffer.kind is Kind.CONSTANT else None
        given = None if buffer.data is None else len(buffer.data)
        if given != wanted:
            actual = f"{buffer.name} ({buffer.kind.value}) has data of {given} bytes"
            yield Violation(place.path, actual, f"{wanted} bytes")


def overlap(program: Program) -> Iterator[Violation]:
    """Buffers that are live at the same time share no bytes, unless they are declared aliases."""
    declared = {frozenset((alias.buffer, alias.of)) for alias in program.aliases}
    for path, lives, settled in _scopes(program):
        for a, b in _overlapping(lives):
            if frozenset((a.name, b.name)) in declared or {a, b} <= settled:
                continue
            first, second = lives[a], lives[b]
            if _share_bytes(a, b) and first[0] <= second[1] and second[0] <= first[1]:
                actual = f"{a.name} and {b.name} overlap in {a.memory.value}"
                yield Violation(path, actual, "an alias, or other addresses")


Life = tuple[int, int]
"""First and last position in program order at which a buffer is live."""


def _overlapping(lives: Mapping[Buffer, Life]) -> Iterator[tuple[Buffer, Buffer]]:
    """Pairs of buffers in one memory whose byte ranges overlap, in whichever partitions."""
    order = {buffer: number for number, buffer in enumerate(lives)}
    placed = [buffer for buffer in lives if buffer.address is not None]
    pairs: list[tuple[Buffer, Buffer]] = []
    for memory in Memory:
        open_: list[Buffer] = []
        here = [buffer for buffer in placed if buffer.memory is memory]
        for buffer in sorted(here, key=lambda buffer: buffer.address or 0):
            start = buffer.address or 0
            open_ = [
                earlier for earlier in open_ if (earlier.address or 0) + earlier.extent > start
            ]
            pairs += [tuple(sorted((earlier, buffer), key=order.__getitem__)) for earlier in open_]  # type: ignore[misc]
            open_.append(buffer)
    yield from sorted(pairs, key=lambda pair: (order[pair[0]], order[pair[1]]))


def _scopes(program: Program) -> Iterator[tuple[str, dict[Buffer, Life], set[Buffer]]]:
    """Scopes with buffers to compare, and the buffers among them that are already compared.

    A scope is the program, or a kernel together with the program's buffers on chip.
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
    """Lives of used buffers; those of kinds `whole` live from beginning to end.

    A buffer that outlives an iteration of a loop lives as long as the loop: one that is also used
    outside the loop, or that the loop's body reads before writing it.
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
    """Where nodes use a buffer, and whether the first use is a read."""

    life: Life
    is_read_first: bool


@dataclass(slots=True)
class _Uses:
    """All buffers that nodes use, and the number of nodes, including nested ones."""

    uses: dict[Buffer, _Use]
    size: int


def _used(nodes: tuple[Node, ...], start: int) -> _Uses:
    used: dict[Buffer, list[tuple[_Use, Life | None]]] = {}
    position = start
    for node in nodes:
        inner = _uses_of(node, position)
        extent = (position, position + inner.size - 1)
        for buffer, use in inner.uses.items():
            whole = extent if isinstance(node, Split) else None
            if isinstance(node, Loop | While):
                carried = use.is_read_first
                used.setdefault(buffer, []).append((use, extent))
                if carried:
                    use.life = extent
                continue
            if whole is not None:
                use.life = whole
            used.setdefault(buffer, []).append((use, None))
        position += inner.size
    uses = {buffer: _merged(parts) for buffer, parts in used.items()}
    return _Uses(uses, position - start)


def _merged(parts: list[tuple[_Use, Life | None]]) -> _Use:
    """Merges a buffer's uses by several nodes; those in loops then last as long as the loop."""
    lives = [loop if loop is not None and len(parts) > 1 else use.life for use, loop in parts]
    life = min(first for first, _ in lives), max(last for _, last in lives)
    return _Use(life, parts[0][0].is_read_first)


def _uses_of(node: Node, position: int) -> _Uses:
    """The uses of one node; a call is taken not to read its arguments first."""
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


def _share_bytes(a: Buffer, b: Buffer) -> bool:
    if a.memory is not b.memory or a.address is None or b.address is None:
        return False
    meet = a.address < b.address + b.extent and b.address < a.address + a.extent
    if not a.on_chip:
        return meet
    return (
        meet
        and a.partition < b.partition + b.partitions
        and b.partition < a.partition + a.partitions
    )
