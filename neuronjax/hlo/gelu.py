"""GELU and its derivative where a program spells them out, in values of any kind.

Source of the formulas: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from neuronjax.hlo.expansions import Made, Reader, Value

Factor = TypeVar("Factor")

ERFC = -math.sqrt(0.5)
DENSITY = 1 / math.sqrt(2 * math.pi)
TANH = math.sqrt(2 / math.pi)
CUBIC = 0.044715
_MOST = 8
"""Factors of a product that are looked at."""


@dataclass(frozen=True)
class Product(Generic[Factor]):
    """A value as a number times other values, each as often as it is a factor."""

    number: float
    factors: Counter[Factor]

    def times(self, other: Product[Factor]) -> Product[Factor]:
        """The product of this one and another."""
        return Product(self.number * other.number, self.factors + other.factors)

    def without(self, *values: Factor) -> Counter[Factor] | None:
        """The factors that are left; None: one of `values` is no factor."""
        left = self.factors.copy()
        for value in values:
            if not left[value]:
                return None
            left[value] -= 1
        return +left


@dataclass(frozen=True)
class Recogniser(Generic[Value]):
    """Finds the functions; their constants may be off by a relative `tolerance`."""

    reader: Reader[Value]
    #: The x of an erfc(x); None: a value is no such function.
    erfc: Callable[[Value], Value | None]
    tolerance: float
    #: What a value was before it was only seen in another way.
    seen: Callable[[Value], Value] = lambda value: value

    def is_near(self, number: float, wanted: float) -> bool:
        """Whether a number is one that a function has."""
        return math.isclose(number, wanted, rel_tol=self.tolerance)

    def product(self, value: Value, most: int = _MOST) -> Product[Value]:
        """A value taken apart into at most about `most` factors."""
        number = self.reader.number(value)
        if number is not None:
            return Product(float(number), Counter())
        value = self.seen(value)
        made = self.reader.made(value)
        if made is not None and made.name == "negate":
            return Product[Value](-1.0, Counter()).times(self.product(made.operands[0], most))
        if made is not None and made.name == "multiply" and most > 1:
            left = self.product(made.operands[0], most - 1)
            rest = most - max(1, left.factors.total())
            return left.times(self.product(made.operands[1], rest))
        return Product(1.0, Counter([value]))

    def gelu(self, product: Product[Value]) -> Value | None:
        """The x of x · erfc(-x / √2) / 2."""
        for x, tail in self._halves(product):
            argument = self.erfc(tail)
            if argument is not None and self._is(argument, ERFC, x):
                return x
        return None

    def gelu_of_tanh(self, product: Product[Value]) -> Value | None:
        """The x of x · (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2."""
        for x, tail in self._halves(product):
            for unit, other in self.sums(tail):
                made = self.reader.made(self.seen(other))
                if made is None or made.name != "tanh" or self.reader.number(unit) != 1:
                    continue
                if self.is_cubic(made.operands[0], TANH, x):
                    return x
        return None

    def is_cubic(self, value: Value, number: float, x: Value) -> bool:
        """Whether a value is number · (x + 0.044715 x³)."""
        product = self.product(value)
        return any(
            self.seen(linear) == x and self._is(cubic, CUBIC, x, x, x)
            for total in product.factors
            if self._are(product, number, total)
            for linear, cubic in self.sums(total)
        )

    def derivative(self, left: Value, right: Value) -> tuple[Value, Counter[Value], float] | None:
        """The x, and the factors and the number of g, of a sum that is
        g · erfc(-x / √2) / 2 + g · x · exp(-x² / 2) / √(2π)."""
        for first, second in ((left, right), (right, left)):
            tail = self.product(first)
            for factor in tail.factors:
                argument = self.erfc(factor)
                if argument is None:
                    continue
                scaled, outer = self.product(argument), tail.without(factor)
                if scaled.factors.total() != 1 or not self.is_near(scaled.number, ERFC):
                    continue
                (x,) = scaled.factors
                assert outer is not None
                if self._is_density(self.product(second), x, outer, 2 * tail.number):
                    return x, outer, 2 * tail.number
        return None

    def _is_density(
        self, product: Product[Value], x: Value, outer: Counter[Value], number: float
    ) -> bool:
        """Whether a product is number · outer · x · exp(-x² / 2) / √(2π)."""
        return self.is_near(product.number, number * DENSITY) and any(
            made.name == "exponential"
            and product.without(x, power) == outer
            and self._is(made.operands[0], -0.5, x, x)
            for power, made in self.makers(product)
        )

    def makers(self, product: Product[Value]) -> Iterator[tuple[Value, Made[Value]]]:
        """The factors that are made by operations, and how."""
        for factor in product.factors:
            if (made := self.reader.made(factor)) is not None:
                yield factor, made

    def sums(self, total: Value) -> tuple[tuple[Value, Value], ...]:
        """Both terms of a sum, in both orders."""
        made = self.reader.made(total)
        if made is None or made.name != "add":
            return ()
        left, right = made.operands
        return (left, right), (right, left)

    def _halves(self, product: Product[Value]) -> Iterator[tuple[Value, Value]]:
        """Half the product of two values, in both orders."""
        if product.factors.total() == 2 and self.is_near(product.number, 0.5):
            for factor in product.factors:
                for other in product.without(factor) or ():
                    yield other, factor

    def _is(self, value: Value, number: float, *factors: Value) -> bool:
        return self._are(self.product(value), number, *factors)

    def _are(self, product: Product[Value], number: float, *factors: Value) -> bool:
        return self.is_near(product.number, number) and product.factors == Counter(factors)
