"""Sets of numbers at strides: first + Σ stride · step, where each step runs from 0 to size - 1.

The elements that an access touches while the loops about it run are such a set. Two sets meet if
the difference of their first numbers is a sum of the strides of both, the steps of one counted
down. Strides are tried from the greatest down, which leaves few possible steps for each of them.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from neuronjax.program.affine import Interval

_MOST_STEPS = 2_000

Terms = tuple[tuple[int, int], ...]
"""Strides above 0, and sizes above 1."""


class Strided(NamedTuple):
    """The least number of a set, and the strides and sizes that lead to all others."""

    first: int
    terms: Terms

    @property
    def last(self) -> int:
        """The greatest of the numbers."""
        last = self.first
        for stride, size in self.terms:
            last += stride * (size - 1)
        return last

    @property
    def hull(self) -> Interval:
        """The interval from the least number to the greatest one."""
        return Interval(self.first, self.last)

    def shifted(self, by: int) -> Strided:
        """The set with `by` added to all numbers."""
        return Strided(self.first + by, self.terms) if by else self

    def run(self, width: int = 1) -> tuple[int, Terms]:
        """The length of a run without gaps, and the terms around it, the finest first.

        Each number counts as `width`, as an element counts as its bytes.
        """
        length, rest = width, sorted(self.terms)
        while rest and rest[0][0] * width <= length:
            stride, size = rest.pop(0)
            length += stride * width * (size - 1)
        return length, tuple(rest)

    @property
    def length(self) -> int | None:
        """How many numbers it has, without a gap; None: there are gaps."""
        length, rest = self.run()
        return None if rest else length

    def runs(self, most: int) -> tuple[Interval, ...] | None:
        """The intervals that it consists of; None: they are more than `most`."""
        length, rest = self.run()
        if math.prod(size for _, size in rest) > most:
            return None
        steps = itertools.product(*(range(0, stride * size, stride) for stride, size in rest))
        starts = [self.first + sum(step) for step in steps]
        return tuple(Interval(start, start + length - 1) for start in starts)

    def meets(self, other: Strided) -> bool | None:
        """Whether both have a number in common; None: too slow to decide."""
        distance = self.first - other.first
        if distance == 0:
            return True
        if self.first > other.last or other.first > self.last:
            return False
        return _meet(distance, self.terms, other.terms)


def strided(base: int, steps: Iterable[tuple[int, int]]) -> Strided:
    """The set about `base` of steps whose strides may be negative or 0."""
    terms = []
    for stride, size in steps:
        if stride and size > 1:
            base += min(0, stride * (size - 1))
            terms.append((abs(stride), size))
    return Strided(base, tuple(terms))


@functools.lru_cache(maxsize=1 << 14)
def _meet(distance: int, terms: Terms, other: Terms) -> bool | None:
    length = sum(stride * (size - 1) for stride, size in terms)
    return is_sum((*terms, *other), distance + length)


def is_sum(terms: Iterable[tuple[int, int]], wanted: int) -> bool | None:
    """Whether a number is a sum of strides (above 0) times steps; None: too slow to decide."""
    sizes: dict[int, int] = {}
    for stride, size in terms:
        sizes[stride] = sizes.get(stride, 1) + size - 1
    return _Sum(sorted(sizes.items(), reverse=True)).reaches(0, wanted)


@dataclass(slots=True)
class _Sum:
    """The possible sums of strides times steps, with properties of the sums of trailing terms."""

    terms: list[tuple[int, int]]
    #: Of the terms from each position on: the greatest sum, the common divisor of all sums, and
    #: whether the sums include every number up to the greatest.
    most: list[int] = field(default_factory=list)
    divisors: list[int] = field(default_factory=list)
    dense: list[bool] = field(default_factory=list)
    steps: int = 0

    def __post_init__(self) -> None:
        most, divisor, dense = 0, 0, True
        self.most, self.divisors, self.dense = [most], [divisor], [dense]
        for stride, size in reversed(self.terms):
            dense = dense and stride <= most + 1
            most, divisor = most + stride * (size - 1), math.gcd(divisor, stride)
            self.most.append(most)
            self.divisors.append(divisor)
            self.dense.append(dense)
        self.most.reverse()
        self.divisors.reverse()
        self.dense.reverse()

    def reaches(self, position: int, wanted: int) -> bool | None:
        """Whether terms from a position on can sum up to `wanted`; None: too slow to decide."""
        if not 0 <= wanted <= self.most[position]:
            return False
        if self.dense[position] or not wanted:
            return True
        if wanted % self.divisors[position]:
            return False
        self.steps += 1
        if self.steps > _MOST_STEPS:
            return None
        stride, size = self.terms[position]
        least = max(0, -(-(wanted - self.most[position + 1]) // stride))
        reached: bool | None = False
        for step in range(least, min(size - 1, wanted // stride) + 1):
            reached = self.reaches(position + 1, wanted - step * stride)
            if reached is not False:
                return reached
        return reached
