"""Buffers: that they fit, are aligned, and share memory only where it is meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

from neuronjax.program.element_types import bytes_of
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Buffer, Kind, Memory
from neuronjax.program.program import Call, Kernel, Loop, Node, Program, Split, While
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
    for path, lives in _scopes(program):
        for (one, first), (other, second) in combinations(lives.items(), 2):
            if frozenset((one.name, other.name)) in declared:
                continue
            if _share_bytes(one, other) and first[0] <= second[1] and second[0] <= first[1]:
                found = f"{one.name} and {other.name} overlap in {one.memory.value}"
                yield Violation(path, found, "an alias, or other addresses")


Life = tuple[int, int]
"""First and last position in program order at which a buffer holds something."""


def _scopes(program: Program) -> Iterator[tuple[str, dict[Buffer, Life]]]:
    """Buffers that may meet: those of the program, and those of each kernel with them."""
    outer = _lives(program.body, program.buffers, whole=(Kind.ARGUMENT, Kind.RESULT, Kind.CONSTANT))
    yield program.name, outer
    for place, kernel in kernels(program):
        held = {buffer: life for buffer, life in outer.items() if buffer.on_chip}
        everywhere = dict.fromkeys(held, (0, _AT_THE_END))
        locals_ = _lives(kernel.body, kernel.buffers)
        reached = {
            buffer: life
            for buffer, life in everywhere.items()
            if _is_live_in(program, held[buffer], kernel)
        }
        for (one, first), (other, second) in combinations(locals_.items(), 2):
            yield place.path, {one: first, other: second}
        for one, first in locals_.items():
            for other, second in reached.items():
                yield place.path, {one: first, other: second}


_AT_THE_END = 1 << 62


def _is_live_in(program: Program, life: Life, kernel: Kernel) -> bool:
    positions = [position for position, node in _ordered(program.body) if node is kernel]
    return any(life[0] <= position <= life[1] for position in positions)


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
    lives: dict[Buffer, Life] = {
        buffer: (0, _AT_THE_END) for buffer in known if buffer.kind in whole
    }
    wanted = set(known) - lives.keys()
    for buffer in (each for each in known if each in wanted):
        life = _life(nodes, buffer, 0)
        if life:
            lives[buffer] = life
    return lives


def _life(nodes: tuple[Node, ...], buffer: Buffer, start: int) -> Life | None:
    found: list[Life] = []
    loops: list[tuple[Life, Life, bool]] = []
    position = start
    for node in nodes:
        size = 1 + sum(1 for _ in _ordered(children(node)))
        if isinstance(node, Instruction):
            life = (position, position) if _uses(node, buffer) else None
        elif isinstance(node, Call):
            life = (position, position) if buffer in node.arguments else None
        else:
            life = _life(children(node), buffer, position + 1)
            if life and isinstance(node, Split):
                life = (position, position + size - 1)
            if life and isinstance(node, Loop | While):
                extent = (position, position + size - 1)
                loops.append((life, extent, _is_read_first(children(node), buffer)))
        if life:
            found.append(life)
        position += size
    for life, extent, carried in loops:
        if carried or len(found) > 1:
            found[found.index(life)] = extent
    if not found:
        return None
    return min(life[0] for life in found), max(life[1] for life in found)


def _uses(instruction: Instruction, buffer: Buffer) -> bool:
    return any(access.buffer == buffer for access in instruction.accesses())


def _is_read_first(nodes: tuple[Node, ...], buffer: Buffer) -> bool:
    """Whether the first instruction that uses the buffer reads it; of a call nobody knows."""
    for _, node in _ordered(nodes):
        if isinstance(node, Call) and buffer in node.arguments:
            return False
        if isinstance(node, Instruction) and _uses(node, buffer):
            uses = [use for use in node.uses() if getattr(use.operand, "buffer", None) == buffer]
            return any(use.role.is_read and use.unless is False for use in uses)
    return False


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
