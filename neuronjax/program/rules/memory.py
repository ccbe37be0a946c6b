"""Buffers fit, are aligned, and share memory only where that is declared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, product

from neuronjax.program.element_types import bytes_of
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Kind, Memory
from neuronjax.program.program import Call, Kernel, Loop, Node, Program, Split, While
from neuronjax.program.rules.site import Violation
from neuronjax.program.walk import buffers, children, kernels, walk


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
    roots = {alias.buffer: alias.of for alias in program.aliases}
    for scope, here, lives_of, settled in _scopes(program):
        pairs = [
            (a, b)
            for a, b in _overlapping(here, lives_of)
            if roots.get(a.name, a.name) != roots.get(b.name, b.name)
            and not {a, b} <= settled
            and _share_bytes(a, b)
        ]
        if pairs:
            lives, inside = lives_of(), f"{scope}/"
            paths = [place.path for place, _ in walk(program) if place.path.startswith(inside)]
            yield from (_overlap(scope, paths, lives, *pair) for pair in pairs)


def _overlap(scope: str, paths: Sequence[str], lives: _Lives, a: Buffer, b: Buffer) -> Violation:
    """The violation where one of two buffers is written while the other one is needed; `paths` are
    those of the positions in a scope."""
    (early, last), (late, begin) = next(
        ((a, first[1]), (b, second[0]))
        if first[0] <= second[0]
        else ((b, second[1]), (a, first[0]))
        for first, second in product(lives[a], lives[b])
        if first[0] <= second[1] and second[0] <= first[1]
    )
    until = f"while {paths[last]} needs that" if last < len(paths) else "which lasts"
    actual = f"{late.name} lies where {early.name} does in {early.memory.value}, {until}"
    place = paths[begin] if begin < len(paths) else scope
    return Violation(place, actual, "other addresses, or an alias")


Span = tuple[int, int]
Life = list[Span]
"""First and last positions in program order between which a buffer surely holds a value.

A write ends what was there before: how much of it is overwritten is not looked at, so a life may
be longer than this, never shorter.
"""


def _overlapping(
    buffers: Sequence[Buffer], lives_of: Callable[[], _Lives]
) -> Iterator[tuple[Buffer, Buffer]]:
    """Pairs of buffers in one memory, live at the same time, whose byte ranges overlap.

    Lives are computed only if any byte ranges overlap.
    """
    pairs: list[tuple[Buffer, Buffer]] = []
    lives: _Lives | None = None
    for memory in Memory:
        here = [
            buffer for buffer in buffers if buffer.memory is memory and buffer.address is not None
        ]
        here.sort(key=_start)
        if not any(_end(a) > _start(b) for a, b in pairwise(here)):
            continue
        lives = lives_of() if lives is None else lives
        ranges: dict[tuple[int, int], list[_Lived]] = {}
        for buffer in here:
            if buffer in lives:
                lived = (lives[buffer], buffer)
                ranges.setdefault((_start(buffer), _end(buffer)), []).append(lived)
        open_: list[tuple[int, list[_Lived]]] = []
        for (start, end), lived_there in ranges.items():
            open_ = [entry for entry in open_ if entry[0] > start]
            pairs += _meeting([lived_there])
            for _, others in open_:
                pairs += _meeting([others, lived_there])
            open_.append((end, lived_there))
    order = {buffer: number for number, buffer in enumerate(buffers)}
    ordered = [(a, b) if order[a] < order[b] else (b, a) for a, b in pairs]
    yield from sorted(ordered, key=lambda pair: (order[pair[0]], order[pair[1]]))


_Lived = tuple[Life, Buffer]


def _meeting(groups: Sequence[Sequence[_Lived]]) -> Iterator[tuple[Buffer, Buffer]]:
    """Pairs of buffers of one group, or of two different groups, whose lives meet. Lives are gone
    through in the order of their beginnings, so that buffers which follow each other at one place
    are not all compared."""
    ordered = [
        (life[0][0], side, life, b) for side, group in enumerate(groups) for life, b in group
    ]
    ordered.sort(key=_begin)
    open_: list[list[_Lived]] = [[] for _ in groups]
    for begin, side, life, buffer in ordered:
        open_[-1 - side] = others = [
            entry for entry in open_[-1 - side] if entry[0][-1][1] >= begin
        ]
        yield from ((earlier, buffer) for other, earlier in others if _meet(other, life))
        open_[side].append((life, buffer))


def _begin(entry: tuple[int, int, Life, Buffer]) -> int:
    return entry[0]


def _meet(a: Life, b: Life) -> bool:
    if a[0][0] > b[-1][1] or b[0][0] > a[-1][1]:
        return False
    return any(first <= end and begin <= last for first, last in a for begin, end in b)


def _start(buffer: Buffer) -> int:
    return buffer.address or 0


def _end(buffer: Buffer) -> int:
    return _start(buffer) + buffer.extent


_Lives = dict[Buffer, Life]
_Touched = Mapping[str, Mapping[int, bool]]
"""Function -> indices of the parameters that it uses, and whether it reads them first."""
_Scope = tuple[str, tuple[Buffer, ...], Callable[[], _Lives], set[Buffer]]


def _scopes(program: Program) -> Iterator[_Scope]:
    """Scopes with buffers to compare, their lives, and those of them that are already compared.

    A scope is the program, or a kernel together with the program's buffers on chip.
    """
    seen = _Seen(_touched(program))
    lasting = (Kind.ARGUMENT, Kind.RESULT, Kind.CONSTANT)
    outer = _lives(program.body, program.buffers, seen, whole=lasting)
    yield program.name, program.buffers, lambda: outer, set()
    held = {buffer: life for buffer, life in outer.items() if buffer.on_chip}
    positions: dict[int, list[int]] = {}
    if held:
        for position, node in _ordered(program.body):
            positions.setdefault(id(node), []).append(position)
    for place, kernel in kernels(program):
        here = positions.get(id(kernel), ())
        length = _used_in(kernel, seen)[1] if here and held else 0
        reached = {
            buffer: within
            for buffer, life in held.items()
            if (within := sorted(span for at in here for span in _within(life, at + 1, length)))
        }
        lives = partial(_kernel_lives, kernel, seen, reached)
        yield place.path, (*kernel.buffers, *reached), lives, set(reached)


def _kernel_lives(kernel: Kernel, seen: _Seen, reached: _Lives) -> _Lives:
    used = _used_in(kernel, seen)[0]
    own = {buffer: used[buffer].life for buffer in kernel.buffers if buffer in used}
    return own | reached


_AT_THE_END = 1 << 62


def _within(life: Life, start: int, length: int) -> Iterator[Span]:
    """What of a life falls into a kernel, in positions of the kernel.

    What is there before it lasts as long as the kernel: a kernel's own tiles hold nothing when it
    starts, so they must not lie there.
    """
    for first, last in life:
        if first < start <= last:
            yield 0, _AT_THE_END
        elif start <= first < start + length:
            yield first - start, last - start if last < start + length else _AT_THE_END


def _ordered(nodes: tuple[Node, ...], start: int = 0) -> Iterator[tuple[int, Node]]:
    """Nodes with their positions in program order; a node's position precedes its children's."""
    position = start
    for node in nodes:
        yield position, node
        inner = list(_ordered(children(node), position + 1))
        yield from inner
        position += 1 + len(inner)


def _touched(program: Program) -> _Touched:
    touched: dict[str, dict[int, bool]] = {}
    for function in program.functions:
        used = _used(function.body, _Seen(touched))[0]
        touched[function.name] = {
            index: used[buffer].is_read_first
            for index, buffer in enumerate(function.parameters)
            if buffer in used
        }
    return touched


def _lives(
    nodes: tuple[Node, ...],
    known: tuple[Buffer, ...],
    seen: _Seen,
    whole: tuple[Kind, ...],
) -> dict[Buffer, Life]:
    """Lives of used buffers; those of kinds `whole` live from beginning to end.

    A buffer that the body of a loop reads before writing it lives as long as the loop.
    """
    used = _used(nodes, seen)[0]
    lives: dict[Buffer, Life] = {}
    for buffer in known:
        if buffer.kind in whole:
            lives[buffer] = [(0, _AT_THE_END)]
        elif buffer in used:
            lives[buffer] = used[buffer].life
    return lives


@dataclass(slots=True)
class _Use:
    """The life of a buffer in the positions of its uses."""

    life: Life
    is_read_first: bool


_Uses = dict[Buffer, _Use]


@dataclass(slots=True)
class _Seen:
    """What functions use of their parameters, and kernels that have been gone through: identity of
    a kernel -> what it uses, in its own positions, and how many these are."""

    touched: _Touched
    kernels: dict[int, tuple[_Uses, int]] = field(default_factory=dict)


def _used_in(node: Node, seen: _Seen) -> tuple[_Uses, int]:
    """What `_used` says of the nodes within a node."""
    if not isinstance(node, Kernel):
        return _used(children(node), seen)
    if id(node) not in seen.kernels:
        seen.kernels[id(node)] = _used(node.body, seen)
    return seen.kernels[id(node)]


def _used(nodes: tuple[Node, ...], seen: _Seen) -> tuple[_Uses, int]:
    """The buffers that nodes use, and how many nodes these are, including nested ones."""
    used: _Uses = {}
    position = 0
    for node in nodes:
        if isinstance(node, Instruction):
            _add_instruction(used, node, position)
            position += 1
            continue
        if isinstance(node, Call):
            for index, is_read_first in seen.touched.get(node.function, {}).items():
                here = [(position, position)]
                _add(used, node.arguments[index], here, reads=is_read_first)
            position += 1
            continue
        inner, length = _used_in(node, seen)
        first = position + 1
        whole = [(position, position + length)]
        for buffer, use in inner.items():
            repeats = isinstance(node, While) or (isinstance(node, Loop) and node.trips != 1)
            lasts = isinstance(node, Split) or (repeats and use.is_read_first)
            life = whole if lasts else [(begin + first, end + first) for begin, end in use.life]
            _add(used, buffer, life, reads=use.is_read_first)
        position += 1 + length
    return used, position


def _add_instruction(used: _Uses, node: Instruction, position: int) -> None:
    reads: dict[Buffer, bool] = {}
    for use in node.uses():
        if isinstance(use.operand, Access):
            buffer = use.operand.buffer
            is_read = use.role.is_read and use.unless is False
            reads[buffer] = reads.get(buffer, False) or is_read
    for buffer, is_read in reads.items():
        _add(used, buffer, [(position, position)], reads=is_read)


def _add(used: _Uses, buffer: Buffer, life: Life, *, reads: bool) -> None:
    known = used.get(buffer)
    if known is None:
        used[buffer] = _Use(list(life), reads)
    elif reads:
        known.life[-1] = (known.life[-1][0], life[0][1])
        known.life += life[1:]
    else:
        known.life += life


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
