"""Addresses for the buffers of a program that have none yet.

Arguments, results and constants lie side by side in HBM, scratch behind them, where what is not
wanted any more makes room. The tiles of a kernel share memory only if they do not fit otherwise,
and those of one loop last: sharing makes an iteration wait for another. A product's result must not
cross a bank of PSUM, so tiles there begin at banks, or, if those do not suffice, at multiples of
their size rounded up to a power of two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from neuronjax.errors import (
    DeviceMemoryError,
    OnChipMemoryError,
    PsumOverflowError,
    SbufOverflowError,
)
from neuronjax.lower.memory.lifetimes import Life, lives, widest, with_loops
from neuronjax.lower.memory.occupancy import Lives, Timeline, meet, timeline
from neuronjax.lower.memory.placement import Piece, Placed, place, place_sparingly
from neuronjax.lower.tuning import DEFAULT, Tuning
from neuronjax.lower.write.rebuild import with_buffers
from neuronjax.machine.timings import DMA_BEAT_BYTES
from neuronjax.program.element_types import bytes_of
from neuronjax.program.neighbours import back, sites
from neuronjax.program.operand import Buffer, Kind, Memory
from neuronjax.program.program import Kernel, Node, Program
from neuronjax.program.records import altered
from neuronjax.program.walk import kernels

_FOREVER: Lives = ((0, 1 << 62),)
_ERRORS: dict[Memory, type[OnChipMemoryError]] = {
    Memory.SBUF: SbufOverflowError,
    Memory.PSUM: PsumOverflowError,
}
_SHOWN = 5


@dataclass(slots=True)
class _Group:
    """Buffers that lie in one place: one, or aliases of each other."""

    buffers: list[Buffer]
    lives: Lives

    @property
    def address(self) -> int | None:
        """The address that one of them has already."""
        return next((buffer.address for buffer in self.buffers if buffer.address is not None), None)


def allocate(
    program: Program, *, check: bool = True, pauses: Sequence[int] = (), tuning: Tuning = DEFAULT
) -> Program:
    """The program with an address for every buffer; parameters of functions have those of calls.

    Tiles that must share memory prefer what no instruction wants for a while: the longest of the
    `pauses`, in instructions, that is possible.

    Raises ``SbufOverflowError`` or ``PsumOverflowError`` if the tiles of a kernel do not fit, and
    with `check` ``DeviceMemoryError`` if the program does not fit into its core's HBM.
    """
    times = timeline(program)
    outer = {buffer.name: buffer for buffer in _on_chip(program, times)}
    outer |= {buffer.name: buffer for buffer in _in_hbm(program, times)}
    if check:
        check_hbm(program, outer.values())
    seen: dict[int, dict[str, Buffer]] = {}
    near = _near(program, tuning.overlaps)
    for kernel in (*near.kernels, *(kernel for _, kernel in kernels(program))):
        if id(kernel) not in seen:
            residents = _residents(kernel, program, outer, times)
            others = [seen[other] for other in near.beside.get(id(kernel), ()) if other in seen]
            tiles = [tile for known in others for tile in known.values()]
            placed = _tiles(kernel, program, residents, near=tiles, pauses=pauses)
            seen[id(kernel)] = {tile.name: tile for tile in placed}
    return with_buffers(program, outer, seen)


@dataclass(slots=True)
class _Near:
    """Kernels in the order of the program, and those that may run at the same time on its core."""

    kernels: list[Kernel] = field(default_factory=list)
    beside: dict[int, dict[int, None]] = field(default_factory=dict)


def _near(program: Program, overlaps: int) -> _Near:
    near = _Near()
    known = sites(program)
    for site in known:
        near.kernels += site.kernels
        for number, _ in back(known, site, overlaps):
            for kernel, other in zip(site.kernels, known[number].kernels, strict=False):
                near.beside.setdefault(id(kernel), {})[id(other)] = None
                near.beside.setdefault(id(other), {})[id(kernel)] = None
    return near


def fits(kernel: Kernel, program: Program, *, is_apart: bool = True) -> bool:
    """Whether a kernel's tiles find room; if `is_apart`, those of a roomy loop share none."""
    try:
        list(_tiles(kernel, program, (), is_apart=is_apart))
    except OnChipMemoryError:
        return False
    return True


def check_hbm(program: Program, buffers: Iterable[Buffer]) -> None:
    """Raises ``DeviceMemoryError`` if buffers end behind the logical core's share of HBM."""
    limit = program.target.chip_spec.logical_core_hbm_bytes(program.target.lnc)
    held = [buffer for buffer in buffers if not buffer.on_chip]
    end = max(((buffer.address or 0) + buffer.extent for buffer in held), default=0)
    if end > limit:
        names = ", ".join(map(_described, _largest(held)))
        raise DeviceMemoryError(
            f"program {program.name} needs {end} bytes of HBM, but a logical core of"
            f" {program.target.chip} at LNC {program.target.lnc} has {limit}. The largest tensors"
            f" are {names}. Use more cores, a smaller batch, donated arguments or"
            " rematerialisation."
        )


def _described(buffer: Buffer) -> str:
    shape = ", ".join(map(str, buffer.shape))
    slots = f" x {buffer.slots} slots" if buffer.slots > 1 else ""
    kind = f"{buffer.kind.value} " if not buffer.on_chip else ""
    return f"{kind}{buffer.name} {buffer.dtype.name}[{shape}]{slots} ({buffer.extent} bytes)"


def _largest(buffers: Iterable[Buffer]) -> list[Buffer]:
    return sorted(buffers, key=lambda buffer: -buffer.extent)[:_SHOWN]


# HBM


def _in_hbm(program: Program, times: Timeline) -> Iterator[Buffer]:
    """The program's HBM buffers, with addresses."""
    known = [buffer for buffer in program.buffers if not buffer.on_chip]
    groups = list(_groups(known, program, times))
    fixed: Placed = []
    rest: list[_Group] = []
    for group in groups:
        if group.address is None:
            rest.append(group)
        else:
            fixed.append((group.address, _piece(group)))
    lasting = [group for group in rest if group.lives == _FOREVER]
    passing = [group for group in rest if group.lives != _FOREVER]
    end = max((at + piece.size for at, piece in fixed), default=0)
    for group in lasting:
        at = _aligned(end, DMA_BEAT_BYTES)
        end = at + _piece(group).size
        fixed.append((at, _piece(group)))
        yield from _at_address(group, at)
    pieces = [_piece(group) for group in passing]
    addresses = place(pieces, _merged(fixed), 1 << 62, reuse=True) or []
    for group, at in zip(passing, addresses, strict=True):
        yield from _at_address(group, at)
    for group in groups:
        if group.address is not None:
            yield from _at_address(group, group.address)


def _merged(fixed: Placed) -> Placed:
    """What lies there for good as few pieces: those that touch each other are one."""
    merged: list[list[int]] = []
    lasting = sorted((at, at + piece.size) for at, piece in fixed if piece.lives == _FOREVER)
    for at, end in lasting:
        if merged and at <= merged[-1][1] + DMA_BEAT_BYTES:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([at, end])
    whole = [(at, Piece(end - at, 1, (0, 0), _FOREVER)) for at, end in merged]
    return whole + [entry for entry in fixed if entry[1].lives != _FOREVER]


def _groups(known: Sequence[Buffer], program: Program, times: Timeline) -> Iterator[_Group]:
    """Buffers with those that they share memory with on purpose."""
    names = {buffer.name: buffer for buffer in known}
    root = {name: name for name in names}
    for alias in program.aliases:
        if alias.buffer in names and alias.of in names:
            old, new = root[alias.buffer], root[alias.of]
            root = {name: new if at == old else at for name, at in root.items()}
    members: dict[str, list[Buffer]] = {}
    for name, buffer in names.items():
        members.setdefault(root[name], []).append(buffer)
    for alike in members.values():
        yield _Group(alike, _lives_of(alike, times))


def _lives_of(buffers: Sequence[Buffer], times: Timeline) -> Lives:
    if any(buffer.kind is not Kind.SCRATCH for buffer in buffers):
        return _FOREVER
    lives = [times.lives(buffer.name) for buffer in buffers]
    if len(lives) == 1:
        return lives[0]
    ends = [end for life in lives for interval in life for end in interval]
    return ((min(ends), max(ends)),) if ends else ()


def _piece(group: _Group, unit: int = 1) -> Piece:
    """What a group takes, from a multiple of `unit` on."""
    size = max(buffer.extent for buffer in group.buffers)
    lanes = [
        (buffer.partition, buffer.partition + buffer.partitions - 1) for buffer in group.buffers
    ]
    align = max(unit, *(bytes_of(buffer.dtype) for buffer in group.buffers))
    if not group.buffers[0].on_chip:
        return Piece(size, max(align, DMA_BEAT_BYTES), (0, 0), group.lives)
    return Piece(size, align, (min(lanes)[0], max(high for _, high in lanes)), group.lives)


def _at_address(group: _Group, address: int) -> Iterator[Buffer]:
    for buffer in group.buffers:
        at = address if buffer.address is None else buffer.address
        yield altered(buffer, address=at)


def _aligned(address: int, alignment: int) -> int:
    return -(-address // alignment) * alignment


# On chip


def _on_chip(program: Program, times: Timeline) -> Iterator[Buffer]:
    """Buffers that live in SBUF or PSUM between kernels, with addresses."""
    for memory in (Memory.SBUF, Memory.PSUM):
        known = [buffer for buffer in program.buffers if buffer.memory is memory]
        if known:
            groups = list(_groups(known, program, times))
            yield from _placed(groups, [], memory, program, f"program {program.name}")


def _residents(
    kernel: Kernel, program: Program, outer: dict[str, Buffer], times: Timeline
) -> list[Buffer]:
    """On-chip buffers of the program that hold something while the kernel runs."""
    here: Lives = tuple((position, position) for position in times.kernels.get(id(kernel), ()))
    own = [outer[buffer.name] for buffer in program.buffers if buffer.on_chip]
    return [buffer for buffer in own if _is_held(buffer, here, times)]


def _is_held(buffer: Buffer, here: Lives, times: Timeline) -> bool:
    life = times.lives(buffer.name)
    return any(first <= position <= last for position, _ in here for first, last in life)


def _tiles(
    kernel: Kernel,
    program: Program,
    residents: Sequence[Buffer],
    *,
    is_apart: bool = False,
    near: Sequence[Buffer] = (),
    pauses: Sequence[int] = (),
) -> Iterator[Buffer]:
    """The kernel's tiles, with addresses; if `is_apart`, those of a roomy loop share none.

    They stay off the tiles that are `near`, of kernels that may run at the same time, if they can.
    """
    if all(buffer.address is not None for buffer in kernel.buffers):
        return
    used = lives(kernel.body, kernel.buffers)
    times = Timeline()
    where = f"kernel {kernel.name}"
    if kernel.sources:
        where += f" (from {', '.join(kernel.sources)})"
    for memory in (Memory.SBUF, Memory.PSUM):
        known = [buffer for buffer in kernel.buffers if buffer.memory is memory]
        groups = list(_groups(known, program, times))
        for group in groups:
            ends = [end for buffer in group.buffers if buffer in used for end in used[buffer]]
            group.lives = ((min(ends), max(ends)),) if ends else ()
        held = [buffer for buffer in residents if buffer.memory is memory]
        roomy = _roomy(kernel.body, groups, memory, program)
        apart = [
            _Group(group.buffers, tuple(with_loops(span, roomy) for span in group.lives))
            for group in groups
        ]
        try:
            others = [tile for tile in near if tile.memory is memory]
            placed = list(_placed(apart, held, memory, program, where, others, pauses))
        except OnChipMemoryError:
            if is_apart:
                raise
            placed = list(_placed(groups, held, memory, program, where, pauses=pauses))
        yield from placed


def _roomy(
    nodes: tuple[Node, ...], groups: Sequence[_Group], memory: Memory, program: Program
) -> list[Life]:
    """The loops whose tiles have room side by side; those within others of them are left out."""
    core = program.target.core
    spec = core.sbuf if memory is Memory.SBUF else core.psum
    sizes = [
        (group.lives, _spaced(group, _WAYS[memory][-1], spec.bank_bytes)[1].size)
        for group in groups
    ]

    def has_room(loop: Life) -> bool:
        taken = sum(size for spans, size in sizes if meet(spans, (loop,)))
        return taken <= spec.usable_partition_bytes

    return widest(nodes, has_room)


def _placed(
    groups: list[_Group],
    held: list[Buffer],
    memory: Memory,
    program: Program,
    where: str,
    near: Sequence[Buffer] = (),
    pauses: Sequence[int] = (),
) -> Iterator[Buffer]:
    """Groups with addresses in an on-chip memory; `held` is taken by others, `near` best not."""
    core = program.target.core
    spec = core.sbuf if memory is Memory.SBUF else core.psum
    fixed: Placed = [(buffer.address or 0, _piece(_Group([buffer], _FOREVER))) for buffer in held]
    fixed += [(group.address, _piece(group)) for group in groups if group.address is not None]
    others = [(buffer.address or 0, _piece(_Group([buffer], _FOREVER))) for buffer in near]
    for units in _WAYS[memory]:
        new = [_spaced(group, units, spec.bank_bytes) for group in groups if group.address is None]
        pieces = [piece for _, piece in new]
        addresses = place_sparingly(pieces, fixed, spec.usable_partition_bytes, others, pauses)
        if addresses is not None:
            for (group, _), at in zip(new, addresses, strict=True):
                yield from _at_address(group, at)
            return
    raise _overflow(groups, held, memory, spec.usable_partition_bytes, where)


def _dense(slot_bytes: int, bank: int) -> int:
    """Slots anywhere."""
    return 1


def _whole_banks(slot_bytes: int, bank: int) -> int:
    """Every slot begins a bank."""
    return bank


def _parts_of_banks(slot_bytes: int, bank: int) -> int:
    """No slot that fits into a bank crosses one."""
    return min(bank, 1 << (slot_bytes - 1).bit_length())


_WAYS = {Memory.SBUF: (_dense,), Memory.PSUM: (_whole_banks, _parts_of_banks)}
"""Memory -> what slots begin at multiples of: ways to try, the best first."""


def _spaced(group: _Group, units: Callable[[int, int], int], bank: int) -> tuple[_Group, Piece]:
    """The group with room between its slots, and what is to be placed."""
    unit = max(units(buffer.slot_bytes, bank) for buffer in group.buffers)
    buffers = []
    for buffer in group.buffers:
        stride = _aligned(buffer.slot_bytes, unit)
        if buffer.slots > 1 and buffer.slot_stride is None and stride > buffer.slot_bytes:
            buffer = dataclasses.replace(buffer, slot_stride=stride)
        buffers.append(buffer)
    spaced = _Group(buffers, group.lives)
    return spaced, _piece(spaced, unit)


def _overflow(
    groups: list[_Group], held: list[Buffer], memory: Memory, limit: int, where: str
) -> OnChipMemoryError:
    buffers = [buffer for group in groups for buffer in group.buffers]
    least = sum(max(buffer.extent for buffer in group.buffers) for group in groups)
    resident = sum(buffer.extent for buffer in held)
    taken = f" ({resident} of them hold values that outlive kernels)" if held else ""
    return _ERRORS[memory](
        f"the tiles of {where} do not fit into {memory.name}: they need {least} bytes in each"
        f" partition, and those alive at the same time exceed its {limit} bytes{taken}. The"
        f" largest are {', '.join(map(_described, _largest(buffers)))}. Use smaller tiles or fewer"
        " slots, or split the kernel."
    )
