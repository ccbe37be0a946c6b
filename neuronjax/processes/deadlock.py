"""Processes that wait for each other in different programs, as none of them ever comes to.

A process waits within a collective of a run of a program for a message of another one. That one may
wait for a third in the same run, or it has not begun the run because it waits in another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class Tag(NamedTuple):
    """What a message belongs to; equal on both sides."""

    program: str
    run: int
    collective: str
    #: Which of several messages of a collective: its visit, group, and step.
    part: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.collective} of {self.program}"

    @property
    def whole_run(self) -> tuple[str, int]:
        """The run of a program."""
        return self.program, self.run


class Wait(NamedTuple):
    """A process that waits for a message of another one."""

    process: int
    awaited: int
    tag: Tag

    def __str__(self) -> str:
        return f"process {self.process} waits for process {self.awaited} at {self.tag}"


def find_cycle(
    own: int, waits: Mapping[int, Sequence[Wait]], begun: Collection[tuple[str, int]]
) -> list[Wait]:
    """Waits from one to the next, from process `own` back to it; empty if there are none.

    Args:
      own: the process that looks.
      waits: what each process waits for.
      begun: the runs that `own` has begun, which it will not keep anybody waiting in.
    """
    for first in waits.get(own, ()):
        path = _follow([first], waits, begun)
        if path:
            return path
    return []


def _follow(
    path: list[Wait], waits: Mapping[int, Sequence[Wait]], begun: Collection[tuple[str, int]]
) -> list[Wait]:
    """The path with waits that lead back to its first process."""
    process, run = path[-1].awaited, path[-1].tag.whole_run
    theirs = waits.get(process, ())
    for wait in [wait for wait in theirs if wait.tag.whole_run == run] or theirs:
        if wait.awaited == path[0].process:
            if wait.tag.whole_run not in begun:
                return [*path, wait]
        elif all(wait.awaited != before.process for before in path):
            further = _follow([*path, wait], waits, begun)
            if further:
                return further
    return []
