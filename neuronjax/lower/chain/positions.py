"""Positions where tiles begin in each dimension, and the loops that lead from one to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from neuronjax.lower.write.builder import KernelBuilder
from neuronjax.program.affine import ZERO, Affine

Position = Mapping[int, Affine]
"""Dimension -> index."""

Base = Iterable[tuple[int, Affine | int]]
"""Dimensions, and how many indices further something is."""


class Repeated(Protocol):
    """A loop: its iterations, and how many indices further each is in some dimensions."""

    @property
    def size(self) -> int: ...

    @property
    def steps(self) -> tuple[tuple[int, int], ...]: ...


def origin(rank: int, base: Base = ()) -> dict[int, Affine]:
    """The first indices of all dimensions, or others that are `base` further."""
    return shifted(dict.fromkeys(range(rank), ZERO), base)


def shifted(position: Position, base: Base) -> dict[int, Affine]:
    """A position some indices further."""
    further = dict(position)
    for dim, start in base:
        further[dim] = further[dim] + start
    return further


def element(offset: Affine, position: Position, strides: Sequence[int]) -> Affine:
    """The element at a position of what begins at an offset."""
    for dim, at in position.items():
        offset = offset + at * strides[dim]
    return offset


def nest(
    builder: KernelBuilder,
    loops: Sequence[Repeated],
    position: Position,
    body: Callable[[dict[int, Affine]], None],
) -> None:
    """Writes `body` at every position that loops lead to."""
    if not loops:
        body(dict(position))
        return
    loop, *inner = loops
    with builder.loop(loop.size) as variable:
        at = shifted(position, ((dim, variable * step) for dim, step in loop.steps))
        nest(builder, inner, at, body)
