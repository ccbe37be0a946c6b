"""The lives of buffers: when they hold what is still wanted, in positions of program order.

Within a kernel, positions are instructions. A life goes from the first to the last use; a use in a
loop that the rest of the life is not in counts as the whole loop, and so does every loop that
carries the buffer: an iteration of it reads what it has not written itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from neuronjax.lower.memory.coverage import Coverage, Filled
from neuronjax.program.affine import Affine, First
from neuronjax.program.instruction import Instruction, Use
from neuronjax.program.operand import Access, Buffer
from neuronjax.program.program import If, Loop, Node, While
from neuronjax.program.walk import children, leaves

Life = tuple[int, int]
"""First and last position, both included."""


@dataclass(eq=False, slots=True)
class Cycle:
    """A loop in program order; `variable` is None where nobody counts: while, or a condition. It is
    sure to run if its trips are known."""

    variable: str | None
    trips: int | None
    first: int
    is_sure: bool = True
    last: int = 0


Cycles = tuple[Cycle, ...]


class Touch(NamedTuple):
    """A use of a buffer; `cycles` are the loops about it, outermost first."""

    position: int
    cycles: tuple[Cycle, ...]
    use: Use

    @property
    def access(self) -> Access:
        """The operand."""
        assert isinstance(self.use.operand, Access)
        return self.use.operand


def lives(nodes: tuple[Node, ...], known: Iterable[Buffer]) -> dict[Buffer, Life]:
    """The lives of those of the buffers `known` that the instructions below `nodes` use."""
    coverage = Coverage()
    return {buffer: life(own, coverage) for buffer, own in touches(nodes, known).items()}


def outermost(nodes: tuple[Node, ...]) -> list[Life]:
    """The positions within each of the loops and conditions among `nodes`."""
    return widest(nodes, lambda _: True)


def widest(nodes: tuple[Node, ...], suits: Callable[[Life], bool]) -> list[Life]:
    """The positions within loops and conditions below `nodes` that suit; those within others that
    suit are left out."""
    spans: list[Life] = []

    def enter(nodes: tuple[Node, ...], position: int) -> None:
        for node in nodes:
            inner = () if isinstance(node, Instruction) else children(node)
            count = 1 if isinstance(node, Instruction) else sum(1 for _ in leaves(inner))
            span = (position, position + count - 1)
            if inner and count and suits(span):
                spans.append(span)
            else:
                enter(inner, position)
            position += count

    enter(nodes, 0)
    return spans


def with_loops(span: Life, loops: Iterable[Life]) -> Life:
    """A life that lasts as long as those of some loops that it touches."""
    first, last = span
    touched = [loop for loop in loops if loop[0] <= last and first <= loop[1]]
    return min((first, *(loop[0] for loop in touched))), max((last, *(loop[1] for loop in touched)))


def life(touches: list[Touch], coverage: Coverage) -> Life:
    """The first and the last position at which a buffer with these uses holds something."""
    depth = 0
    while True:
        about = {touch.cycles[depth : depth + 1] for touch in touches}
        if len(about) > 1 or about == {()}:
            break
        (cycle,) = next(iter(about))
        if _is_carried(cycle, depth, touches, coverage):
            return cycle.first, cycle.last
        depth += 1
    spans = [
        (touch.cycles[depth].first, touch.cycles[depth].last)
        if len(touch.cycles) > depth
        else (touch.position, touch.position)
        for touch in touches
    ]
    return min(first for first, _ in spans), max(last for _, last in spans)


def carried(loop: Loop, known: Iterable[Buffer]) -> list[Buffer]:
    """The buffers of `known` of which an iteration of the loop reads what it has not written."""
    coverage = Coverage()
    return [
        buffer
        for buffer, uses in touches((loop,), known).items()
        if _is_carried(uses[0].cycles[0], 0, uses, coverage)
    ]


def _is_carried(cycle: Cycle, depth: int, touches: list[Touch], coverage: Coverage) -> bool:
    """Whether an iteration of the loop `cycle`, at `depth`, reads what it has not written."""
    return cycle.variable is None or reads_unwritten(touches, depth + 1, coverage)


def reads_unwritten(touches: Iterable[Touch], depth: int, coverage: Coverage) -> bool:
    """Whether touches read what none of them has written before, in one iteration of the first
    `depth` loops about them."""
    written = _Written(coverage)
    for touch in touches:
        inner = touch.cycles[depth:]
        if not begins(touch, depth) and not written.has(touch.access, inner):
            return True
        if touch.use.role.is_write and all(cycle.is_sure for cycle in inner):
            written.add(touch.access, inner)
    return False


@dataclass(slots=True)
class _Written:
    """What an iteration has written of a tile so far."""

    coverage: Coverage
    writes: list[tuple[Cycles, Access]] = field(default_factory=list)
    walks: set[tuple[object, ...]] = field(default_factory=set)
    #: Loops about a read, and how many stand still -> what is filled then, by so many writes.
    known: dict[tuple[Cycles, int], tuple[Filled, int]] = field(default_factory=dict)

    def add(self, access: Access, cycles: Cycles) -> None:
        """Takes note of a write within loops."""
        self.writes.append((cycles, access))
        if isinstance(access.offset, Affine):
            self.walks.add((cycles, *access.walk))

    def has(self, access: Access, cycles: Cycles) -> bool:
        """Whether all that is read within loops has been written before.

        Just these elements may have been, in the same iteration of all loops about the write. Else
        some of the loops stand still, the outermost ones, while the read goes through the others.
        """
        walk = access.walk
        if any((cycles[:count], *walk) in self.walks for count in range(len(cycles) + 1)):
            return True
        return any(
            self.filled(cycles, still).has(self.coverage.touched(access, _trips(cycles[still:])))
            for still in range(len(cycles), -1, -1)
        )

    def filled(self, cycles: Cycles, still: int) -> Filled:
        """What is written while so many of the loops stand still.

        A write may be in those, and has gone through all other loops about it by then.
        """
        written, count = self.known.get((cycles, still), (Filled(), 0))
        for others, write in self.writes[count:]:
            both = _shared(cycles, others)
            if both <= still:
                written.add(self.coverage.filled(write, _trips(others[both:])))
        self.known[cycles, still] = written, len(self.writes)
        return written


def _trips(cycles: Cycles) -> dict[str, int | None]:
    return {cycle.variable: cycle.trips for cycle in cycles if cycle.variable is not None}


def _shared(cycles: Cycles, other: Cycles) -> int:
    """How many loops, from the outermost, are about both."""
    pairs = zip(cycles, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a is not b), min(len(cycles), len(other)))


def begins(touch: Touch, depth: int) -> bool:
    """Whether a use overwrites, at least in the first iteration of all loops but `depth`."""
    if not touch.use.role.is_read:
        return True
    unless = touch.use.unless
    return (
        isinstance(unless, First) and set(unless.variables) <= _trips(touch.cycles[depth:]).keys()
    )


def touches(nodes: tuple[Node, ...], known: Iterable[Buffer]) -> dict[Buffer, list[Touch]]:
    """The uses below `nodes` of those of the buffers `known` that are used, reads of an instruction
    before its writes."""
    names = {buffer.name: buffer for buffer in known}
    listed: dict[Buffer, list[Touch]] = defaultdict(list)
    _collect(nodes, 0, (), names, listed)
    return listed


def _collect(
    nodes: tuple[Node, ...],
    position: int,
    cycles: tuple[Cycle, ...],
    names: dict[str, Buffer],
    touches: dict[Buffer, list[Touch]],
) -> int:
    """Adds all uses below `nodes`; returns the position after them."""
    for node in nodes:
        if isinstance(node, Instruction):
            for use in _in_order(node):
                buffer = names.get(use.operand.buffer.name)  # type: ignore[union-attr]
                if buffer is not None and buffer.memory is use.operand.memory:  # type: ignore[union-attr]
                    touches[buffer].append(Touch(position, cycles, use))
            position += 1
            continue
        inner = cycles
        if isinstance(node, Loop | While | If):
            cycle = Cycle(
                variable=node.variable if isinstance(node, Loop) else None,
                trips=node.most_trips if isinstance(node, Loop) else None,
                first=position,
                is_sure=isinstance(node, Loop) and isinstance(node.trips, int),
            )
            inner = (*cycles, cycle)
        position = _collect(children(node), position, inner, names, touches)
        if inner is not cycles:
            inner[-1].last = position - 1
    return position


def _in_order(instruction: Instruction) -> list[Use]:
    """The instruction's uses of memory, reads first."""
    uses = [use for use in instruction.uses() if isinstance(use.operand, Access)]
    return sorted(uses, key=lambda use: not use.role.is_read)
