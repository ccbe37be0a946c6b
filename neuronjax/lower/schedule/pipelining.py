"""Software pipelining: iterations of a loop that overlap.

A loop is entered in the middle: its body begins with the second half of an iteration and ends with
the first half of the next one. That is the order in which instructions were written anyway, but now
both halves are in one list, where each finds the engines idle that the other one does not need.
See Lam, "Software Pipelining: An Effective Scheduling Technique for VLIW Machines" (1988).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from neuronjax.lower.memory.lifetimes import carried
from neuronjax.lower.schedule.clocks import Timer
from neuronjax.lower.write.rebuild import with_tiles
from neuronjax.lower.write.stepping import Step, stepped
from neuronjax.program.operand import Buffer
from neuronjax.program.program import Loop, Node
from neuronjax.program.walk import leaves

Nodes = tuple[Node, ...]


class Pipelined(NamedTuple):
    """What comes before a loop, the loop with one iteration less, and what comes after it.

    `tiles` are new, by name: copies for what comes before and after.
    """

    prologue: Nodes
    loop: Loop
    epilogue: Nodes
    tiles: dict[str, Buffer]


def pipelined(loop: Loop, cut: int, tiles: Mapping[str, Buffer]) -> Pipelined:
    """A loop that is entered at the node number `cut` of its body.

    It has at least two iterations. Instructions run in the same order as before. `tiles` are those
    that nobody else uses and that hold nothing between iterations; outside of the loop, copies that
    may lie elsewhere take the place of those that hold nothing across the cut.
    """
    trips, name = loop.trips, loop.variable
    assert isinstance(trips, int)
    first, second = loop.body[:cut], loop.body[cut:]
    body = (
        *stepped(second, Step(name, factor=1, base=0, is_first=True, is_last=False)),
        *stepped(first, Step(name, factor=1, base=1, is_first=False, is_last=True)),
    )
    rotated = dataclasses.replace(loop, trips=trips - 1, body=body)
    both = _used(first, tiles) & _used(second, tiles)
    crossing = {tile.name for tile in carried(rotated, [tiles[name] for name in sorted(both)])}
    new: dict[str, Buffer] = {}

    def outside(nodes: Nodes, ending: str, step: Step) -> Nodes:
        copies = {
            tile: dataclasses.replace(tiles[tile], name=f"{tile}_{ending}")
            for tile in sorted(_used(nodes, tiles) - crossing)
        }
        new.update((copy.name, copy) for copy in copies.values())
        return with_tiles(stepped(nodes, step), copies)

    return Pipelined(
        outside(first, "first", Step(name, factor=0, base=0, is_first=True, is_last=False)),
        rotated,
        outside(second, "last", Step(name, factor=0, base=trips - 1, is_first=False, is_last=True)),
        new,
    )


def _used(nodes: Nodes, tiles: Mapping[str, Buffer]) -> set[str]:
    """Names of those of the tiles that nodes use."""
    accesses = (access for leaf in leaves(nodes) for access in leaf.accesses())
    return {access.buffer.name for access in accesses} & tiles.keys()


def best_cut(timer: Timer, nodes: Nodes, whole: Iterable[Sequence[int]]) -> int | None:
    """The cut of a body whose longer half takes as little time as possible.

    None of the sets of nodes in `whole` may be cut. None: there is no such place.
    """
    places = _places(len(nodes), whole)
    if not places:
        return None
    ends = timer.ends(nodes)
    # Some places, spread evenly over the body's time.
    cuts = timer.tuning.pipeline_cuts
    wanted = [ends[-1] * (index + 1) / (cuts + 1) for index in range(cuts)]
    some = {min(places, key=lambda cut: abs(ends[cut - 1] - time)) for time in wanted}

    def longer(cut: int) -> float:
        return max(ends[cut - 1], timer.ends(nodes, cut)[-1])

    return min(sorted(some), key=longer)


def _places(count: int, whole: Iterable[Sequence[int]]) -> list[int]:
    """The places in a list of nodes that are in the middle of none of the sets."""
    depth = [0] * (count + 1)
    for nodes in whole:
        depth[min(nodes) + 1] += 1
        depth[max(nodes) + 1] -= 1
    places = []
    cut_through = 0
    for place in range(count):
        cut_through += depth[place]
        if place and not cut_through:
            places.append(place)
    return places
