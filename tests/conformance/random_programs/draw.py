"""Choices: which values, which shapes, which constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

import jax.numpy as jnp
import numpy as np

from tests.conformance.random_programs.facts import FLOATS, INTEGERS, Facts, is_float
from tests.conformance.random_programs.program import Value, literal

T = TypeVar("T")

MAX_ELEMENTS = 3000
_DIMS = (1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 9, 16, 17)
_LARGE_DIMS = (32, 33, 64, 100, 127, 128, 129, 130, 200, 257)


class Unsuitable(Exception):
    """There is no value that this statement could take."""


@dataclass(frozen=True)
class Line:
    """An expression with the facts of each of its results, whose types follow from tracing it."""

    text: str
    reads: tuple[Value, ...]
    facts: tuple[Facts, ...]
    definitions: str = ""
    """Lines before it: functions that it uses; `{name}` is the name of its first result."""


def line(text: str, reads: Sequence[Value], *facts: Facts, definitions: str = "") -> Line:
    return Line(text, tuple(reads), facts, definitions)


@dataclass
class Draw:
    """A source of choices, and the values that there are."""

    random: Random
    values: list[Value] = field(default_factory=list)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def integer(self, low: int, high: int) -> int:
        """From low to high, both included."""
        return self.random.randint(low, high)

    def choice(self, options: Sequence[T]) -> T:
        return self.random.choice(options)

    def permutation(self, count: int) -> list[int]:
        order = list(range(count))
        self.random.shuffle(order)
        return order

    def value(self, *conditions: Callable[[Value], bool]) -> Value:
        """A value that meets the conditions; later ones more often."""
        suitable = [value for value in self.values if all(each(value) for each in conditions)]
        if not suitable:
            raise Unsuitable
        recent = suitable[-3:]
        return self.choice(recent if self.chance(0.6) else suitable)

    def shape(self, rank: int | None = None, elements: int = MAX_ELEMENTS) -> tuple[int, ...]:
        rank = self.choice((0, 1, 1, 2, 2, 2, 3, 3, 4)) if rank is None else rank
        dims: list[int] = []
        for _ in range(rank):
            options = _LARGE_DIMS if self.chance(0.12) else _DIMS
            room = elements // max(1, int(np.prod(dims)))
            dims.append(min(self.choice(options), max(1, room)))
        if dims and self.chance(0.02):
            dims[self.integer(0, rank - 1)] = 0
        self.random.shuffle(dims)
        return tuple(dims)

    def dtype(self) -> np.dtype:
        weighted = (
            ("float32",) * 10 + ("int32",) * 4 + ("bfloat16",) * 3 + ("float16",) * 2
            + FLOATS[3:] + INTEGERS[1:] + ("bool",) * 2
        )  # fmt: skip
        return jnp.dtype(self.choice(weighted))

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, Facts]:
        """Elements of one manner, and what is known of them."""
        generator = np.random.default_rng(self.random.getrandbits(32))
        if dtype == np.bool_:
            return generator.integers(0, 2, shape).astype(bool), Facts(1, 1)
        if not is_float(dtype):
            info = jnp.iinfo(dtype)
            low, high = max(int(info.min), -9), min(int(info.max), 9)
            if self.chance(0.2):
                low, high = int(info.min), int(info.max)
            array = generator.integers(low, high, shape, np.int64, endpoint=True)
            return array.astype(dtype), Facts(float(max(-low, high)), 1)
        if self.chance(0.2) and dtype.itemsize > 1:
            array = np.asarray(generator.standard_normal(shape)).astype(dtype)
            facts = Facts(float(np.abs(array.astype(np.float64)).max(initial=0)), 0)
        else:
            reach, quantum = (4, 1.0) if dtype.itemsize == 1 else self.choice(((16, 0.25), (7, 1)))
            array = generator.integers(-reach, reach, shape, endpoint=True).astype(np.float32)
            array, facts = (
                np.asarray(array * quantum).astype(dtype),
                Facts(reach * quantum, quantum),
            )
        if array.size and self.chance(0.12):
            places = generator.integers(0, array.size, min(3, array.size))
            flat = array.reshape(-1).copy()
            flat[places] = [self.special(dtype) for _ in places]
            array = flat.reshape(shape)
            facts = Facts(facts.bound, facts.quantum, special=True)
        return array, facts

    def special(self, dtype: np.dtype) -> float:
        infinite = () if dtype.name == "float8_e4m3fn" else (np.inf, -np.inf)
        return float(self.choice((*infinite, np.nan, -0.0, 0.0)))

    def scalar(self, dtype: np.dtype) -> tuple[str, Facts]:
        """A constant of rank 0, as Python."""
        if is_float(dtype) and self.chance(0.15):
            value = np.asarray(self.special(dtype)).astype(dtype)
            return literal(value), Facts(0, 1, special=True)
        array, facts = self.array((), dtype)
        return literal(array), facts

    def index(self, size: int) -> str:
        """A constant or computed index, now and then negative or beyond the end."""
        number = self.integer(-size - 1, size + 1) if self.chance(0.4) else 0
        number = number if self.chance(0.7) else self.integer(0, max(0, size - 1))
        integers = [v for v in self.values if v.dtype.name == "int32" and v.facts.exact]
        if integers and self.chance(0.4):
            value = self.choice(integers)
            if value.size:
                at = ", ".join(str(self.integer(0, dim - 1)) for dim in value.shape)
                return f"{value.name}[{at}]" if at else value.name
        return f"np.int32({number})" if self.chance(0.7) else str(number)


def floating(value: Value) -> bool:
    return is_float(value.dtype)


def integral(value: Value) -> bool:
    return value.dtype.name in INTEGERS


def boolean(value: Value) -> bool:
    return value.dtype == np.bool_


def exact(value: Value) -> bool:
    return value.facts.exact


def finite(value: Value) -> bool:
    return not value.facts.special


def nonempty(value: Value) -> bool:
    return value.size > 0


def ranked(value: Value) -> bool:
    return bool(value.shape) and value.size > 0


def numeric(value: Value) -> bool:
    return value.dtype != np.bool_


def wide(value: Value) -> bool:
    """Types that have ordinary arithmetic in JAX."""
    return value.dtype.name not in ("float8_e4m3fn", "float8_e5m2", "int4")
