"""What is over when a loop is left whose trips a register decides about.

How far its semaphores have come is not known behind such a loop. So its body ends with a fence,
which waits for all that the body does, and another fence follows the loop in the same engine: every
other engine waits for that one before it goes on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from neuronjax.lower.sync.distance import Source, nearest
from neuronjax.lower.sync.streams import Item, Stream
from neuronjax.program.control import SemaphoreEvent
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Register
from neuronjax.program.program import Loop, Node
from neuronjax.program.walk import leaves


def is_open(node: Node) -> bool:
    """Whether it is a loop whose trips a register decides about."""
    return isinstance(node, Loop) and isinstance(node.trips, Register)


@dataclass(slots=True)
class Fences:
    """The fences of a kernel's `body`, and what they tell while the kernel is looked through."""

    body: tuple[Node, ...]
    _inside: list[Instruction] = field(default_factory=list)
    _behind: list[Instruction] = field(default_factory=list)
    #: The last fence behind a loop, and the engines that have waited for it.
    _last: Item | None = None
    _waited: set[Stream] = field(default_factory=set)

    @classmethod
    def of(cls, nodes: tuple[Node, ...]) -> Fences:
        """The nodes with fences in and behind the loops among them that registers decide about."""
        fences = cls(())
        fences.body = tuple(new for node in nodes for new in fences._fenced(node))
        return fences

    def _fenced(self, node: Node) -> Iterable[Node]:
        if not isinstance(node, Loop) or not is_open(node):
            return (node,)
        *_, last = leaves(node.body)
        inside, behind = SemaphoreEvent(part=last.part), SemaphoreEvent(part=last.part)
        self._inside.append(inside)
        self._behind.append(behind)
        return (dataclasses.replace(node, body=(*node.body, inside)), behind)

    def counted(self, items: Sequence[Item]) -> set[int]:
        """Positions of items that fences or others wait for."""
        positions = {item.position for item in items if _is_one(item, self._behind)}
        for fence in items:
            if _is_one(fence, self._inside):
                positions.update(item.position for item in _last_of_streams(fence, items))
        return positions

    def sources(self, item: Item, items: Sequence[Item]) -> list[Source]:
        """What an item waits for because of fences."""
        if _is_one(item, self._inside):
            return [nearest(item, last, level=1) for last in _last_of_streams(item, items)]
        if _is_one(item, self._behind):
            self._last, self._waited = item, {item.engine}
        elif self._last is not None and item.engine not in self._waited:
            self._waited.add(item.engine)
            return [nearest(item, self._last, level=0)]
        return []


def _is_one(item: Item, fences: Sequence[Instruction]) -> bool:
    return any(item.instruction is fence for fence in fences)


def _last_of_streams(fence: Item, items: Sequence[Item]) -> list[Item]:
    """The last items of other streams in the fence's loop."""
    last: dict[Stream, Item] = {}
    for item in items:
        if item.loops[:1] == fence.loops and item.stream is not fence.stream:
            last[item.stream] = item
    return list(last.values())
