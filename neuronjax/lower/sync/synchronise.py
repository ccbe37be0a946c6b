"""Semaphores for a program without any.

Each stream of a kernel has a semaphore that its instructions add to, one for each outermost loop;
an instruction waits until those streams that conflict with it have come far enough. What decides
is what instructions read and write, byte by byte and iteration by iteration (`distance`), and which
of the waits follow from others (`knowledge`). Counts are linear in loop variables, so loops stay
loops; early iterations wait for 0 or less, that is, for nothing. Kernels that are alike have the
same semaphores.

An engine goes on while a DMA transfer or a collective that it has started runs. Registers in
addresses count as read until the transfer is over.

Conditions have no such counts: `segments` puts them about kernels before. Behind a loop whose trips
a register decides about there are none either: `fences`. What orders kernels that run at a time
comes afterwards (`overlapping`).
"""

from __future__ import annotations

import dataclasses
from collections import Counter as Tally
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from neuronjax.lower.sync.alike import outline
from neuronjax.lower.sync.dependences import Overlap, Uses, counted, sources, uses_of
from neuronjax.lower.sync.distance import Source
from neuronjax.lower.sync.fences import Fences
from neuronjax.lower.sync.knowledge import Engines, Facts, needed
from neuronjax.lower.sync.overlap import Overlaps
from neuronjax.lower.sync.segments import segmented
from neuronjax.lower.sync.streams import Counter, Event, Item, Stream, Turn, count, events
from neuronjax.lower.write.rebuild import mapped
from neuronjax.program.affine import affine
from neuronjax.program.instruction import Instruction, Semaphore, Signal, Wait
from neuronjax.program.program import Kernel, Node, Program

Waits = dict[int, list[Source]]
"""Position of an item -> what it waits for."""


class Usage(NamedTuple):
    """The semaphores of a kernel, and what its instructions do with them, in the order of text."""

    semaphores: tuple[Semaphore, ...]
    uses: Sequence[tuple[tuple[Wait, ...], tuple[Signal, ...]]]


class Semaphores:
    """The semaphores of kernels, found once for those that are alike."""

    def __init__(self) -> None:
        self._usages: dict[Hashable, Usage] = {}
        #: Names of tiles -> the first kernel with them, until another one has them too.
        self._first: dict[tuple[str, ...], tuple[Kernel, Overlap, Usage] | None] = {}

    def put(self, kernel: Kernel, overlap: Overlap) -> Kernel:
        """A kernel of instructions and loops with its semaphores, in place of those it has."""
        fences = Fences.of(kernel.body)
        kernel = dataclasses.replace(kernel, body=fences.body)
        usage = self._of(kernel, fences, overlap)
        uses = iter(usage.uses)
        body = mapped(kernel.body, Instruction, lambda node: node.with_semaphores(*next(uses)))
        return dataclasses.replace(kernel, semaphores=usage.semaphores, body=body)

    def _of(self, kernel: Kernel, fences: Fences, overlap: Overlap) -> Usage:
        """The semaphores of a kernel. Only kernels whose tiles have the same names can be alike, so
        the outline of the first with its names is looked at when there is a second."""
        tiles = tuple([buffer.name for buffer in kernel.buffers])
        if tiles not in self._first:
            usage = _usage(kernel, fences, overlap)
            self._first[tiles] = (kernel, overlap, usage)
            return usage
        first = self._first[tiles]
        if first is not None:
            self._usages[outline(first[0], first[1]).key] = first[2]
            self._first[tiles] = None
        key = outline(kernel, overlap).key
        known = self._usages.get(key)
        if known is None:
            known = self._usages[key] = _usage(kernel, fences, overlap)
        return known


def synchronise(program: Program, semaphores: Semaphores | None = None) -> Program:
    """The program with semaphores in every kernel, in place of those it has.

    Buffers that share memory must have addresses, or be declared aliases. Kernels with conditions
    come apart into several. `semaphores` are taken over from other programs, and kept for them.
    """
    known = semaphores or Semaphores()
    program = segmented(program)
    overlaps = Overlaps(program)
    finished: dict[int, Node] = {}

    def body(nodes: tuple[Node, ...], overlap: Overlap) -> tuple[Node, ...]:
        def change(kernel: Kernel) -> Node:
            if id(kernel) not in finished:
                finished[id(kernel)] = known.put(kernel, overlap)
            return finished[id(kernel)]

        return mapped(nodes, Kernel, change)

    functions = tuple(
        dataclasses.replace(function, body=body(function.body, overlaps.within(function)))
        for function in program.functions
    )
    return dataclasses.replace(
        program, functions=functions, body=body(program.body, overlaps.within(None))
    )


def _usage(kernel: Kernel, fences: Fences, overlap: Overlap) -> Usage:
    order = events(kernel.body)
    items = [event for event in order if isinstance(event, Item)]
    uses = uses_of(items, overlap)
    signalling = counted(items, uses) | fences.counted(items)
    count(order, signalling)
    waits = _waits(order, uses, fences)
    semaphores = _semaphores({source.counter for awaited in waits.values() for source in awaited})
    uses_of_semaphores = [
        _uses(item, waits[item.position], semaphores, item.position in signalling) for item in items
    ]
    return Usage(tuple(semaphores.values()), uses_of_semaphores)


def _semaphores(counters: set[Counter]) -> dict[Counter, Semaphore]:
    """A semaphore for each counter, called after its stream, with a number if there are more."""
    streams = Tally(counter.stream for counter in counters)
    return {
        counter: Semaphore(
            counter.stream.name
            if streams[counter.stream] == 1
            else f"{counter.stream.name}_{counter.loop}"
        )
        for counter in sorted(counters, key=lambda counter: (counter.stream.name, counter.loop))
    }


def _waits(order: list[Event], uses: Uses, fences: Fences) -> Waits:
    """What each item has to wait for: found in a first look, thinned out in a second one."""
    waits: Waits = {}
    begun: dict[int, Facts] = {}
    ends = _look(order, waits, begun, {}, uses, fences)
    _look(order, waits, begun, ends, None, fences)
    return waits


def _look(
    order: list[Event],
    waits: Waits,
    begun: dict[int, Facts],
    ends: dict[Turn, dict[Stream, Facts]],
    uses: Uses | None,
    fences: Fences,
) -> dict[Turn, dict[Stream, Facts]]:
    """Goes through a kernel once; what engines know at the ends of its loops.

    `begun` gets what is known when an item begins. `uses` says where to look for conflicts; None:
    only those of `waits` are looked at again.
    """
    engines = Engines()
    items = [event for event in order if isinstance(event, Item)]
    for event in order:
        if isinstance(event, Item):
            known = engines.of(event.engine)
            if uses is None:
                wanted = waits[event.position]
            else:
                wanted = sources(event, uses, known) + fences.sources(event, items)
            kept, facts = needed(event, wanted, known, begun)
            waits[event.position] = kept
            engines.known[event.engine] = facts
            begun[event.position] = facts
        elif event.is_end:
            engines.leave()
        else:
            engines.enter(event.turn, ends.get(event.turn))
    return engines.ends


def _uses(
    item: Item, awaited: list[Source], semaphores: dict[Counter, Semaphore], is_signalling: bool
) -> tuple[tuple[Wait, ...], tuple[Signal, ...]]:
    names = [turn.variable for turn in item.loops]
    waits = []
    for source in sorted(
        awaited, key=lambda source: (source.counter.stream.name, source.counter.loop, source.count)
    ):
        base, *steps = (source.counter.stream.unit * number for number in source.count)
        reached = affine(base, **dict(zip(names, steps, strict=True)))
        waits.append(Wait(semaphores[source.counter], reached))
    signals = []
    if is_signalling and item.counter in semaphores:
        signals.append(Signal(semaphores[item.counter], item.stream.unit))
    return tuple(waits), tuple(signals)
