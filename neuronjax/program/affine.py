"""Integers that depend on loop variables (`Affine`), and flags that do (`First` and `Last`).

A loop variable is identified by its name; it counts 0, 1, …, trips - 1. A valuation maps names of
loop variables to their values, a range maps them to their numbers of trips.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from neuronjax.errors import MalformedProgramError


class Interval(NamedTuple):
    """The integers from `low` to `high`, inclusive."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Affine:
    """base + Σ coefficient · variable.

    `terms` are pairs of variable and non-zero coefficient, sorted by variable, so that equal
    functions are equal records. Construct it with `affine`.
    """

    base: int = 0
    terms: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if not self.terms:
            return
        names = [name for name, _ in self.terms]
        if names != sorted(set(names)) or not all(factor for _, factor in self.terms):
            raise MalformedProgramError(
                f"affine terms {self.terms} are not sorted, unique and non-zero; make them with"
                " affine(base, variable=coefficient)."
            )

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the loop variables, sorted."""
        return tuple([name for name, _ in self.terms])

    def at(self, values: Mapping[str, int]) -> int:
        """The value at a valuation. KeyError: the valuation lacks a variable."""
        return self.base + sum(factor * values[name] for name, factor in self.terms)

    def interval(self, trips: Mapping[str, int]) -> Interval:
        """Least and greatest value while every variable runs over its trips."""
        if not self.terms:
            return Interval(self.base, self.base)
        reach = [factor * (trips[name] - 1) for name, factor in self.terms]
        return Interval(
            self.base + sum(min(0, step) for step in reach),
            self.base + sum(max(0, step) for step in reach),
        )

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.base + other, self.terms)
        if not other.terms:
            return Affine(self.base + other.base, self.terms)
        sums = dict(self.terms)
        for name, factor in other.terms:
            sums[name] = sums.get(name, 0) + factor
        return affine(self.base + other.base, **sums)

    def __mul__(self, factor: int) -> Affine:
        if not self.terms:
            return Affine(self.base * factor)
        return affine(self.base * factor, **{name: factor * old for name, old in self.terms})


def affine(base: int = 0, **coefficients: int) -> Affine:
    """`base` plus the loop variables times their coefficients: ``affine(5, i=128)``."""
    if not coefficients:
        return _constant(base)
    return Affine(base, tuple(sorted((name, f) for name, f in coefficients.items() if f)))


@functools.lru_cache(maxsize=1 << 14, typed=True)
def _constant(base: int) -> Affine:
    return Affine(base)


ZERO = Affine()


@dataclass(frozen=True, slots=True)
class First:
    """True while all of the loop variables are in their first iteration."""

    variables: tuple[str, ...]

    def holds(self, values: Mapping[str, int], trips: Mapping[str, int]) -> bool:
        """Whether the flag is set at a valuation; KeyError: it lacks a variable."""
        return all(values[name] == 0 for name in self.variables)


@dataclass(frozen=True, slots=True)
class Last:
    """True while all of the loop variables are in their last iteration."""

    variables: tuple[str, ...]

    def holds(self, values: Mapping[str, int], trips: Mapping[str, int]) -> bool:
        """Whether the flag is set at a valuation; KeyError: it lacks a variable."""
        return all(values[name] == trips[name] - 1 for name in self.variables)


Flag = bool | First | Last


def flag_holds(flag: Flag, values: Mapping[str, int], trips: Mapping[str, int]) -> bool:
    """Whether `flag` is set at a valuation of loops with those trips."""
    return flag if isinstance(flag, bool) else flag.holds(values, trips)
