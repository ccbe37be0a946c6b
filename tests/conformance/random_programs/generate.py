"""A program of a seed: the same seed gives the same program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from tests.conformance.random_programs import (
    control,
    elementwise,
    library,
    movement,
    products,
    randomness,
    reductions,
    structure,
)
from tests.conformance.random_programs.draw import MAX_ELEMENTS, Draw, Line, Unsuitable
from tests.conformance.random_programs.program import (
    Argument,
    RandomProgram,
    Statement,
    Value,
    names,
)

FAMILIES: Mapping[str, Mapping[str, Callable[[Draw], Line]]] = {
    "elementwise": elementwise.KINDS,
    "movement": movement.KINDS,
    "reductions": reductions.KINDS,
    "products": products.KINDS,
    "control": control.KINDS,
    "randomness": randomness.KINDS,
    "library": library.KINDS,
    "structure": structure.KINDS,
}

_WEIGHTS = {
    "elementwise": 10, "movement": 8, "reductions": 3, "products": 3, "control": 2,
    "randomness": 1,
    "library": 6, "structure": 4,
}  # fmt: skip

_NAMES = {
    "jax": jax, "jnp": jnp, "np": np, "lax": lax, "ml_dtypes": ml_dtypes, "inf": np.inf,
    "nan": np.nan,
}  # fmt: skip

_MAX_RESULTS = 6


def random_program(seed: int, statements: int = 12) -> RandomProgram:
    """A program of about so many statements that JAX can trace."""
    draw = Draw(Random(seed))
    arguments = [_argument(draw, number) for number in range(draw.integer(1, 4))]
    draw.values += [each.value for each in arguments]
    written: list[Statement] = []
    wanted = draw.integer(1, 2 * statements - 1)
    for _ in range(8 * wanted):
        if len(written) == wanted:
            break
        statement = _statement(draw, f"v{len(draw.values)}")
        if statement is not None:
            written.append(statement)
            draw.values += statement.results
    return RandomProgram(tuple(arguments), tuple(written), _results(draw, written)).without_unused()


def _argument(draw: Draw, number: int) -> Argument:
    dtype = draw.dtype()
    array, facts = draw.array(draw.shape(), dtype)
    return Argument(Value(f"v{number}", array.shape, dtype, facts.stored(dtype)), array)


def _results(draw: Draw, written: list[Statement]) -> tuple[str, ...]:
    """Values that nobody reads, and now and then one that others read too."""
    read = {name for statement in written for name in statement.reads}
    ours = [name for statement in written for name in names(statement.results)]
    chosen = [name for name in ours if name not in read or draw.chance(0.15)]
    return tuple((chosen or names(draw.values))[-_MAX_RESULTS:])


def _statement(draw: Draw, name: str) -> Statement | None:
    """The next statement, if JAX accepts what was chosen."""
    family = draw.random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    kind = draw.choice(tuple(FAMILIES[family]))
    try:
        chosen = FAMILIES[family][kind](draw)
        types = traced(chosen, name)
    except Unsuitable:
        return None
    if len(types) != len(chosen.facts) or any(t.size > 4 * MAX_ELEMENTS for t in types):
        return None
    first = int(name[1:])
    results = tuple(
        Value(f"v{first + place}", each.shape, each.dtype, facts.stored(each.dtype))
        for place, (each, facts) in enumerate(zip(types, chosen.facts, strict=True))
    )
    target = ", ".join(names(results))
    text = f"{chosen.definitions}\n{target} = {chosen.text}".strip().replace("{name}", name)
    reads = tuple(dict.fromkeys(names(chosen.reads)))
    return Statement(kind, text, reads, results)


def traced(chosen: Line, name: str) -> list[jax.ShapeDtypeStruct]:
    """The types of what an expression gives.

    Raises:
      Unsuitable: JAX does not accept it.
    """

    def run(*values: jax.Array) -> object:
        scope = dict(_NAMES) | dict(zip(names(chosen.reads), values, strict=True))
        exec(chosen.definitions.replace("{name}", name), scope)
        return eval(chosen.text.replace("{name}", name), scope)

    arguments = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in chosen.reads]
    try:
        return jax.tree.leaves(jax.eval_shape(run, *arguments))
    except (TypeError, ValueError, NotImplementedError, OverflowError, ZeroDivisionError) as error:
        raise Unsuitable from error
