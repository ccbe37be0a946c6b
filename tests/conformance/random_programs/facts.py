"""What is known of a value without computing it, and so how far two executors may differ in it.

Host and engines may differ in the order in which FP32 numbers are summed, in the last places of
functions and of quotients, and in nothing else. Arguments are multiples of a power of two, so most
sums and products are exact in any order: what then differs in one bit is a defect. Where it is not
exact, the bounds here are those of the textbook (Higham, Accuracy and Stability, chapters 3 and 4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np

FLOATS = (
    "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
INTEGERS = ("int32", "int8", "uint8", "uint32", "int16", "uint16", "int4")
UNKNOWN = math.inf
_EXACT_IN_FP32 = 1 << 24


@dataclass(frozen=True)
class Facts:
    """Facts about the finite elements of a value, and the differences allowed in it."""

    bound: float
    """No finite element is larger."""
    quantum: float
    """All finite elements are multiples of this power of two; 0: not known."""
    relative: float = 0.0
    """Allowed difference, as a part of an element."""
    absolute: float = 0.0
    """Allowed difference besides; infinite if nothing is promised."""
    special: bool = False
    """Whether there may be infinities or NaN."""
    any_zero: bool = False
    """Whether zeros may have either sign: those of sums and of maxima do."""

    @property
    def exact(self) -> bool:
        return not self.relative and not self.absolute

    @property
    def difference(self) -> float:
        """The greatest difference allowed in any element."""
        return self.absolute + (self.relative * self.bound if self.relative else 0.0)

    def loosened(self, relative: float = 0.0, absolute: float = 0.0) -> Facts:
        """The same with more differences allowed."""
        return replace(self, relative=self.relative + relative, absolute=self.absolute + absolute)

    def stored(self, dtype: np.dtype) -> Facts:
        """What is left of it in a type."""
        if dtype == np.bool_:
            return replace(self, bound=1.0, quantum=1.0, special=False)
        if not is_float(dtype):
            info = jnp.iinfo(dtype)
            limit = float(max(info.max, -int(info.min)))
            return replace(
                self, bound=min(self.bound, limit), quantum=max(self.quantum, 1.0), special=False
            )
        info = jnp.finfo(dtype)
        facts = self
        if self.bound > float(info.max):
            facts = replace(facts, bound=float(info.max), special=True)
        if not self.quantum or facts.bound / self.quantum > 2.0 ** (info.nmant + 1):
            facts = replace(facts, quantum=0.0, bound=facts.bound * (1 + float(info.eps)))
            if not self.exact:  # a difference, however small, can change what it is rounded to
                facts = facts.loosened(relative=float(info.eps))
        return facts


def is_float(dtype: np.dtype) -> bool:
    return dtype.name in FLOATS


def joined(*each: Facts) -> Facts:
    """Facts about elements that come from any of several values."""
    return Facts(
        max(facts.bound for facts in each),
        min(facts.quantum for facts in each),
        max(facts.relative for facts in each),
        max(facts.absolute for facts in each),
        any(facts.special for facts in each),
        any(facts.any_zero for facts in each),
    )


def added(left: Facts, right: Facts) -> Facts:
    """Facts of a sum or a difference."""
    both = joined(left, right)
    if both.exact:
        return replace(both, bound=left.bound + right.bound)
    return replace(
        both,
        bound=left.bound + right.bound,
        relative=0.0,
        absolute=left.difference + right.difference,
    )


def multiplied(left: Facts, right: Facts) -> Facts:
    """Facts of a product."""
    both = joined(left, right)
    bound = left.bound * right.bound
    result = replace(both, bound=bound, quantum=left.quantum * right.quantum)
    if both.exact:
        return result
    if not left.absolute and not right.absolute:
        return replace(result, relative=(left.relative + right.relative) * 1.01)
    a, b = left.difference, right.difference
    if UNKNOWN in (a, b):
        return replace(result, relative=0.0, absolute=UNKNOWN)
    return replace(result, relative=0.0, absolute=left.bound * b + right.bound * a + a * b)


def summed(terms: Facts, count: int, dtype: np.dtype, precision: float = 2.0**-24) -> Facts:
    """Facts of sums of so many terms in any order; partial sums are rounded to `precision`.

    Integers wrap around in any order alike, unless they are summed as floats of that precision.
    """
    bound = terms.bound * count
    facts = replace(terms, bound=bound, relative=0.0, any_zero=True)
    if not terms.exact:
        facts = replace(facts, absolute=count * terms.difference)
    exact = terms.quantum and bound / terms.quantum <= 1 / precision
    if not exact and is_float(dtype):
        facts = facts.loosened(absolute=2 * count * precision * bound)
    return facts


def through_float32(facts: Facts) -> Facts:
    """Integers that are added as FP32 and were not exact are anything."""
    exact = facts.exact and facts.bound <= _EXACT_IN_FP32
    return facts if exact else replace(facts, absolute=UNKNOWN)
