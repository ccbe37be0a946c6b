"""A random program as data: arguments and statements, which are lines of Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tests.conformance.random_programs.facts import Facts

HEAD = """\
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from numpy import inf, nan
"""


@dataclass(frozen=True)
class Value:
    """What a name of the program stands for."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    facts: Facts

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


@dataclass(frozen=True)
class Statement:
    """Lines of a program that give values to names."""

    kind: str
    text: str
    reads: tuple[str, ...]
    results: tuple[Value, ...]


@dataclass(frozen=True)
class Argument:
    """An argument with its elements."""

    value: Value
    array: np.ndarray


@dataclass(frozen=True)
class RandomProgram:
    """A function of arrays, and arrays to call it with."""

    arguments: tuple[Argument, ...]
    statements: tuple[Statement, ...]
    results: tuple[str, ...]

    @property
    def values(self) -> dict[str, Value]:
        values = [argument.value for argument in self.arguments]
        values += [value for each in self.statements for value in each.results]
        return {value.name: value for value in values}

    def without_unused(self) -> RandomProgram:
        """The same without what no result depends on."""
        wanted = set(self.results)
        kept: list[Statement] = []
        for statement in reversed(self.statements):
            if wanted & {value.name for value in statement.results}:
                kept.insert(0, statement)
                wanted |= set(statement.reads)
        arguments = tuple(each for each in self.arguments if each.value.name in wanted)
        return RandomProgram(arguments, tuple(kept), self.results)

    def returning(self, results: Iterable[str]) -> RandomProgram:
        """The same with other results."""
        return replace(self, results=tuple(results)).without_unused()

    @property
    def source(self) -> str:
        """A function `program` in Python, and what it needs."""
        lines = [f"def program({', '.join(each.value.name for each in self.arguments)}):"]
        for statement in self.statements:
            lines += [f"    {line}" for line in statement.text.splitlines()]
        lines.append(f"    return ({''.join(f'{name}, ' for name in self.results)})")
        return HEAD + "\n\n" + "\n".join(lines) + "\n"

    @property
    def reproducer(self) -> str:
        """A script that shows its results; the environment says who computes them."""
        arrays = [f"    {literal(each.array)}," for each in self.arguments]
        lines = ["arguments = (", *arrays, ")", "for result in jax.jit(program)(*arguments):"]
        return self.source + "\n\n" + "\n".join([*lines, "    print(repr(np.asarray(result)))\n"])


def literal(array: np.ndarray | np.generic) -> str:
    """An array as Python; also types that numpy has from ml_dtypes alone."""
    dtype = array.dtype
    plain = np.asarray(array)
    if dtype.name == "bfloat16" or dtype.name.startswith("float8"):
        plain = plain.astype(np.float32)
    elif dtype.name == "int4":
        plain = plain.astype(np.int32)
    if not plain.shape and plain.dtype == dtype:
        return f"np.{'bool_' if dtype == np.bool_ else dtype.name}({plain.item()!r})"
    text = repr(plain.tolist())
    if plain.shape and not plain.size:
        return f"np.zeros({plain.shape}, '{dtype.name}')"
    inner = f"np.array({text}, '{plain.dtype.name}')"
    return inner if plain.dtype == dtype else f"{inner}.astype('{dtype.name}')"


def names(values: Sequence[Value]) -> tuple[str, ...]:
    return tuple(value.name for value in values)
