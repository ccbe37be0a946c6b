"""The occupancy of buffers of the program: intervals of positions, one for each kernel run.

Calls are followed, so a function that is called twice has two stretches of positions. A kernel is
one position: what it reads and what it writes do not share memory. A buffer that a kernel fills
anew holds nothing before; inside of loops, that ends the life of the last iteration's value. Nor
does a buffer live from one iteration to the next that nothing outside of the loop uses: what a loop
carries is there before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from neuronjax.lower.memory.coverage import Filled, filled, whole
from neuronjax.lower.memory.lifetimes import Life
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer
from neuronjax.program.program import Call, If, Kernel, Loop, Node, Program, Split, While
from neuronjax.program.walk import children

Lives = tuple[Life, ...]
"""Disjoint intervals in ascending order."""


@dataclass(eq=False, slots=True)
class Block:
    """A loop, while or condition about kernels; `is_sure` if its body runs at least once."""

    is_sure: bool
    first: int
    last: int = 0


class Event(NamedTuple):
    """A kernel uses a buffer; `fills`: it reads nothing of it and writes all of it."""

    position: int
    blocks: tuple[Block, ...]
    fills: bool


@dataclass(slots=True)
class Timeline:
    """Positions of kernels, and what they use."""

    events: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    #: id of a kernel -> positions at which it runs.
    kernels: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    length: int = 0

    def lives(self, name: str) -> Lives:
        """The intervals in which the program's buffer of that name holds something."""
        events = self.events.get(name)
        return _intervals(events, 0, is_own=True)[0] if events else ()


def timeline(program: Program) -> Timeline:
    """The timeline of a program."""
    result = Timeline()
    walker = _Walker(program, result)
    walker.walk(program.body, (), {buffer.name: buffer.name for buffer in program.buffers})
    return result


@dataclass(slots=True)
class _Walker:
    program: Program
    timeline: Timeline
    _summaries: dict[int, dict[str, bool]] = field(default_factory=dict)

    def walk(
        self, nodes: tuple[Node, ...], blocks: tuple[Block, ...], names: Mapping[str, str]
    ) -> None:
        """Adds all that happens in `nodes`; `names`: what buffers in scope are in the program."""
        timeline = self.timeline
        for node in nodes:
            if isinstance(node, Kernel | Split):
                position, timeline.length = timeline.length, timeline.length + 1
                for kernel in _kernels(node):
                    timeline.kernels[id(kernel)].append(position)
                for name, fills in self._summary(node).items():
                    if name in names:
                        timeline.events[names[name]].append(Event(position, blocks, fills))
            elif isinstance(node, Call):
                self._call(node, blocks, names)
            elif isinstance(node, Loop | While | If):
                is_sure = isinstance(node, Loop) and isinstance(node.trips, int)
                block = Block(is_sure=is_sure, first=timeline.length)
                self.walk(children(node), (*blocks, block), names)
                block.last = max(block.first, timeline.length - 1)

    def _call(self, call: Call, blocks: tuple[Block, ...], names: Mapping[str, str]) -> None:
        function = next(
            function for function in self.program.functions if function.name == call.function
        )
        own = {buffer.name: buffer.name for buffer in self.program.buffers}
        for parameter, buffer in zip(function.parameters, call.arguments, strict=True):
            own[parameter.name] = names.get(buffer.name, buffer.name)
        self.walk(function.body, blocks, own)

    def _summary(self, node: Kernel | Split) -> dict[str, bool]:
        """Buffers that are not the kernels' own -> whether they are filled anew."""
        known = self._summaries.get(id(node))
        if known is None:
            known = self._summaries[id(node)] = _summary(_kernels(node))
        return known


def _kernels(node: Kernel | Split) -> tuple[Kernel, ...]:
    """Kernels that run at one position."""
    return node.kernels if isinstance(node, Split) else (node,)


def _summary(kernels: tuple[Kernel, ...]) -> dict[str, bool]:
    own = {buffer.name for kernel in kernels for buffer in kernel.buffers}
    buffers: dict[str, Buffer] = {}
    written: dict[str, Filled | None] = {}

    def visit(nodes: tuple[Node, ...], trips: Mapping[str, int | None], sure: bool) -> None:
        for node in nodes:
            if isinstance(node, Instruction):
                note(node, trips, sure)
            elif isinstance(node, Loop) and isinstance(node.trips, int):
                visit(node.body, {**trips, node.variable: node.trips}, sure)
            else:
                visit(children(node), trips, False)

    def note(node: Instruction, trips: Mapping[str, int | None], sure: bool) -> None:
        for use in node.uses():
            access = use.operand
            if not isinstance(access, Access) or access.buffer.name in own:
                continue
            name = access.buffer.name
            buffers[name] = access.buffer
            parts = written.setdefault(name, Filled())
            if use.role.is_read:
                written[name] = None
            elif parts is not None and sure:
                parts.add(filled(access, trips))

    for kernel in kernels:
        visit(kernel.body, {}, True)
    return {name: _is_full(buffers[name], parts) for name, parts in written.items()}


def _is_full(buffer: Buffer, parts: Filled | None) -> bool:
    return parts is not None and buffer.slots == 1 and parts.has(whole(buffer))


def _intervals(events: list[Event], depth: int, *, is_own: bool) -> tuple[Lives, bool]:
    """The intervals of some events, and whether the first one fills the buffer; `is_own`: nothing
    outside of the blocks above `depth` uses it."""
    intervals: list[Life] = []
    groups = _groups(events, depth)
    is_own = is_own and len(groups) == 1
    first_fills = False
    for index, (block, inner) in enumerate(groups):
        if block is None:
            parts: Lives = tuple((event.position, event.position) for event in inner)
            fills = inner[0].fills
        else:
            parts, fills = _intervals(inner, depth + 1, is_own=is_own)
            if not is_own and not (fills and (block.is_sure or len(groups) == 1)):
                parts, fills = ((block.first, block.last),), False
        if not index:
            first_fills = fills
        if intervals and not fills:
            intervals[-1] = (intervals[-1][0], parts[0][1])
            intervals += parts[1:]
        else:
            intervals += parts
    return tuple(intervals), first_fills


def _groups(events: list[Event], depth: int) -> list[tuple[Block | None, list[Event]]]:
    """Events that stand in the same block at `depth` together, others alone."""
    groups: list[tuple[Block | None, list[Event]]] = []
    for event in events:
        block = event.blocks[depth] if len(event.blocks) > depth else None
        if block is not None and groups and groups[-1][0] is block:
            groups[-1][1].append(event)
        else:
            groups.append((block, [event]))
    return groups


def meet(lives: Lives, other: Lives) -> bool:
    """Whether two buffers hold something at the same time."""
    if not lives or not other or lives[0][0] > other[-1][1] or other[0][0] > lives[-1][1]:
        return False
    left, right = 0, 0
    while left < len(lives) and right < len(other):
        (first, last), (begin, end) = lives[left], other[right]
        if first <= end and begin <= last:
            return True
        if last < end:
            left += 1
        else:
            right += 1
    return False
