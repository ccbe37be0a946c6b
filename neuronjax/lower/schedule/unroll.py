"""Several iterations of a loop written out."""

from __future__ import annotations

import dataclasses

from neuronjax.lower.write.stepping import Step, stepped
from neuronjax.program.program import Loop, Node


def unrolled(loop: Loop, factor: int) -> tuple[Node, ...]:
    """A loop with `factor` iterations in one, or, with all of them, no loop any more.

    `factor` divides the loop's trips, a number.
    """
    assert isinstance(loop.trips, int)
    assert loop.trips % factor == 0
    if factor == 1:
        return (loop,)
    is_gone = factor == loop.trips
    body: list[Node] = []
    for index in range(factor):
        step = Step(
            variable=loop.variable,
            factor=0 if is_gone else factor,
            base=index,
            is_first=index == 0,
            is_last=index == factor - 1,
        )
        body += stepped(loop.body, step)
    if is_gone:
        return tuple(body)
    return (dataclasses.replace(loop, trips=loop.trips // factor, body=tuple(body)),)


def shortened(loop: Loop, count: int) -> tuple[Loop, tuple[Node, ...]]:
    """A loop without its last `count` iterations, which are fewer than its trips, and these."""
    assert isinstance(loop.trips, int)
    if not count:
        return loop, ()
    trips, name = loop.trips - count, loop.variable
    body = stepped(loop.body, Step(name, factor=1, base=0, is_first=True, is_last=False))
    rest: list[Node] = []
    for index in range(trips, loop.trips):
        is_last = index == loop.trips - 1
        rest += stepped(loop.body, Step(name, 0, index, is_first=False, is_last=is_last))
    return dataclasses.replace(loop, trips=trips, body=body), tuple(rest)
