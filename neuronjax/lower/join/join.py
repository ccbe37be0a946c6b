"""Neighbouring small kernels as one: no barrier between them, and tiles instead of tensors in HBM.

A barrier empties all engines and DMA queues, and what goes through HBM takes two transfers of some
2 us each. Both are small beside large kernels and large beside small ones, so it is small kernels
that are joined. Sequences of kernels that come again, such as the layers of a model, become one
function that is called for each.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from neuronjax.lower.join.forward import forwarded
from neuronjax.lower.memory.allocate import fits
from neuronjax.lower.tuning import DEFAULT, Tuning
from neuronjax.lower.write.rebuild import mapped, on_buffers, with_bodies
from neuronjax.lower.write.small import is_small
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Buffer, Kind
from neuronjax.program.program import (
    Call,
    Function,
    Kernel,
    Node,
    Part,
    Program,
)
from neuronjax.program.walk import calls, children, leaves

_LONGEST_PERIOD = 64


@dataclass(frozen=True, slots=True)
class _Item:
    """A kernel at a place: what tells it from others, its instructions, and what it works on."""

    node: Call | Kernel
    key: str | int
    size: int
    buffers: tuple[Buffer, ...]

    @property
    def scope(self) -> str:
        """The user's name scope of the kernel, which is of one part yet."""
        return next(iter(self.node.scopes), "")


@dataclass(slots=True)
class _Sequence:
    """Kernels to be joined, and every place where just these stand on buffers alike."""

    items: tuple[_Item, ...]
    places: list[tuple[Buffer, ...]] = field(default_factory=list)


def join(program: Program, tuning: Tuning = DEFAULT) -> Program:
    """The program with small kernels joined. Call it before `allocate`, after `split`."""
    return _Joiner(program, tuning).run()


class _Joiner:
    def __init__(self, program: Program, tuning: Tuning) -> None:
        self.program, self.tuning = program, tuning
        self.functions = {function.name: function for function in program.functions}
        self.uses = _uses(program)
        self.known: dict[int, int | None] = {}
        self.sequences: dict[tuple[object, ...], _Sequence] = {}
        self.made: dict[int, tuple[Function | Kernel | None, tuple[int, ...]]] = {}

    def run(self) -> Program:
        """Sequences are collected first: only then is known which of them come again."""
        self._nodes(self.program.body, self._noted)
        body = self._nodes(self.program.body, self._placed)
        called = {node.function for node in calls(body)}
        new = [made for made, _ in self.made.values() if isinstance(made, Function)]
        functions = [
            function for function in (*self.program.functions, *new) if function.name in called
        ]
        joined = dataclasses.replace(self.program, body=body, functions=tuple(functions))
        return _without_unused(joined)

    def _nodes(
        self, nodes: tuple[Node, ...], place: Callable[[tuple[_Item, ...]], Node | None]
    ) -> tuple[Node, ...]:
        joined: list[Node] = []
        waiting: list[_Item] = []

        def flush() -> None:
            keys = [(item.key, item.size) for item in waiting]
            for segment in segments(keys, self.tuning.joined_instructions):
                items = tuple(waiting[segment.start : segment.stop])
                new = place(items) if len(items) > 1 else None
                joined.extend([new] if new is not None else [item.node for item in items])
            waiting.clear()

        for node in nodes:
            item = self._item(node)
            if item is not None:
                waiting.append(item)
                continue
            flush()
            joined.append(with_bodies(node, lambda inner: self._nodes(inner, place)))
        flush()
        return tuple(joined)

    def _item(self, node: Node) -> _Item | None:
        """A kernel that may be joined with others."""
        if isinstance(node, Kernel):
            size = self._size(node)
            return None if size is None else _Item(node, id(node), size, _outside(node))
        if isinstance(node, Call):
            body = self.functions[node.function].body
            if len(body) == 1 and isinstance(body[0], Kernel):
                size = self._size(body[0])
                if size is not None:
                    return _Item(node, node.function, size, node.arguments)
        return None

    def _size(self, kernel: Kernel) -> int | None:
        """The instructions of a kernel; None: it must not be joined."""
        if id(kernel) not in self.known:
            count = sum(1 for _ in leaves(kernel.body))
            self.known[id(kernel)] = (
                count if is_small(kernel.body, self.tuning.small_runs) else None
            )
        return self.known[id(kernel)]

    # Places

    def _noted(self, items: tuple[_Item, ...]) -> Node | None:
        distinct = _distinct(items)
        key = self._key(items, distinct)
        self.sequences.setdefault(key, _Sequence(items)).places.append(distinct)
        return None

    def _placed(self, items: tuple[_Item, ...]) -> Node | None:
        distinct = _distinct(items)
        sequence = self.sequences[self._key(items, distinct)]
        if id(sequence) not in self.made:
            self.made[id(sequence)] = self._made(sequence)
        made, kept = self.made[id(sequence)]
        scopes = tuple(item.scope for item in items)
        if isinstance(made, Kernel):
            return dataclasses.replace(made, scopes=scopes)
        if made is None:
            return None
        arguments = tuple(distinct[index] for index in kept)
        return Call(function=made.name, arguments=arguments, scopes=scopes)

    def _key(self, items: tuple[_Item, ...], distinct: tuple[Buffer, ...]) -> tuple[object, ...]:
        """What is equal for sequences that one function can stand for."""
        number = {buffer.name: index for index, buffer in enumerate(distinct)}
        return tuple(
            (item.key, *(number[buffer.name] for buffer in item.buffers)) for item in items
        )

    def _made(self, sequence: _Sequence) -> tuple[Function | Kernel | None, tuple[int, ...]]:
        """The joined kernel, or a function of it and the numbers of the buffers that it takes.

        None: the tiles of all of them do not fit.
        """
        distinct = sequence.places[0]
        own = Counter(buffer.name for item in sequence.items for buffer in _once(item.buffers))
        internal = {
            buffer.name
            for index, buffer in enumerate(distinct)
            if buffer.kind is Kind.SCRATCH
            and all(self.uses[place[index].name] == own[buffer.name] for place in sequence.places)
        }
        kernels = [self._bound(item) for item in sequence.items]
        apart = _joined(kernels)
        core = self.program.target.core
        room = int(self.tuning.resident_share * core.sbuf.usable_partition_bytes)
        ways = (forwarded(apart, frozenset(internal), core, room), apart)
        kernel = next((way for way in ways if fits(way, self.program)), None)
        if kernel is None:
            return None, ()
        if len(sequence.places) == 1:
            return kernel, ()
        used = {access.buffer.name for leaf in leaves(kernel.body) for access in leaf.accesses()}
        kept = tuple(i for i, buffer in enumerate(distinct) if buffer.name in used)
        parameters = {
            distinct[index].name: dataclasses.replace(
                distinct[index], name=f"p{number}", kind=Kind.SCRATCH, data=None, address=None
            )
            for number, index in enumerate(kept)
        }
        name = f"{kernel.name}_{len(self.made) + 1}"
        body = (on_buffers(kernel, parameters),)
        return Function(name=name, parameters=tuple(parameters.values()), body=body), kept

    def _bound(self, item: _Item) -> Kernel:
        """The kernel on the buffers of its place."""
        if isinstance(item.node, Kernel):
            return item.node
        function = self.functions[item.node.function]
        (kernel,) = function.body
        assert isinstance(kernel, Kernel)
        pairs = zip(function.parameters, item.node.arguments, strict=True)
        return on_buffers(kernel, {parameter.name: given for parameter, given in pairs})


def _uses(program: Program) -> Counter[str]:
    """Buffers of the program -> how many kernels, calls and aliases name them."""
    uses: Counter[str] = Counter()

    def add(nodes: tuple[Node, ...]) -> None:
        for node in nodes:
            if isinstance(node, Call):
                uses.update({buffer.name for buffer in node.arguments})
            elif isinstance(node, Kernel):
                uses.update({buffer.name for buffer in _outside(node)})
            else:
                add(children(node))

    add(program.body)
    uses.update(name for alias in program.aliases for name in (alias.buffer, alias.of))
    return uses


def _outside(kernel: Kernel) -> tuple[Buffer, ...]:
    """Buffers that a kernel uses and does not declare, in order."""
    own = {buffer.name for buffer in kernel.buffers}
    accesses = (access for leaf in leaves(kernel.body) for access in leaf.accesses())
    used = {access.buffer.name: access.buffer for access in accesses}
    return tuple(buffer for name, buffer in used.items() if name not in own)


def _once(buffers: Iterable[Buffer]) -> tuple[Buffer, ...]:
    return tuple({buffer.name: buffer for buffer in buffers}.values())


def _distinct(items: Sequence[_Item]) -> tuple[Buffer, ...]:
    return _once(buffer for item in items for buffer in item.buffers)


def segments(keys: Sequence[tuple[str | int, int]], most: int) -> list[range]:
    """Stretches of kernels, each given by its key and instructions, that are joined to kernels of
    so many instructions at most.

    Periods of what comes again are cut at the same places, so that their stretches are equal.
    """
    segments: list[range] = []
    start = at = 0
    while at < len(keys):
        period = _period(keys, at)
        if not period:
            at += 1
            continue
        segments += _cut(keys, start, at, most)
        while keys[at : at + period] == keys[at + period : at + 2 * period]:
            segments += _cut(keys, at, at + period, most)
            at += period
        segments += _cut(keys, at, at + period, most)
        at += period
        start = at
    return segments + _cut(keys, start, len(keys), most)


def _period(keys: Sequence[tuple[str | int, int]], at: int) -> int:
    """The shortest stretch of several kernels from here that comes twice in a row; 0: none."""
    most = min(_LONGEST_PERIOD, (len(keys) - at) // 2)
    for period in range(2, most + 1):
        if keys[at : at + period] == keys[at + period : at + 2 * period]:
            return period
    return 0


def _cut(keys: Sequence[tuple[str | int, int]], start: int, stop: int, most: int) -> list[range]:
    """A stretch in parts that are not too long."""
    parts: list[range] = []
    total, first = 0, start
    for index in range(start, stop):
        size = keys[index][1]
        if total and total + size > most:
            parts.append(range(first, index))
            total, first = 0, index
        total += size
    return [*parts, range(first, stop)] if stop > first else parts


def _joined(kernels: Sequence[Kernel]) -> Kernel:
    """The kernels one after the other in one kernel, each with tiles of its own."""
    body: list[Node] = []
    buffers: list[Buffer] = []
    for number, kernel in enumerate(kernels):
        renamed = {
            buffer.name: dataclasses.replace(buffer, name=f"{buffer.name}_{number}")
            for buffer in kernel.buffers
        }
        own = on_buffers(kernel, renamed)
        body += mapped(own.body, Instruction, partial(Instruction.with_part, part=number))
        buffers += own.buffers
    return Kernel(
        name=f"{kernels[0].name}_to_{kernels[-1].name}",
        body=tuple(body),
        buffers=tuple(buffers),
        operations=tuple(dict.fromkeys(name for kernel in kernels for name in kernel.operations)),
        sources=tuple(dict.fromkeys(line for kernel in kernels for line in kernel.sources)),
        parts=tuple(Part(kernel.name, kernel.operations, kernel.sources) for kernel in kernels),
    )


def _without_unused(program: Program) -> Program:
    """The program without scratch that no kernel uses any more."""
    used = set(_uses(program))
    kept = (b for b in program.buffers if b.kind is not Kind.SCRATCH or b.name in used)
    return dataclasses.replace(program, buffers=tuple(kept))
