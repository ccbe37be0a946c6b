"""Matrix products and convolutions with dimensions in any order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from tests.conformance.random_programs.draw import Draw, Line, Unsuitable, line, numeric
from tests.conformance.random_programs.facts import (
    UNKNOWN,
    Facts,
    is_float,
    multiplied,
    summed,
    through_float32,
)
from tests.conformance.random_programs.program import Value, literal

Kind = Callable[[Draw], Line]

MAX_PRODUCTS = 200_000


def _second(draw: Draw, x: Value, fits: Callable[[Value], bool], shape: list[int]) -> tuple[
    str, list[Value], Facts, tuple[int, ...]
]:  # fmt: skip
    """A second operand: a value, or a constant of this shape."""
    if draw.chance(0.5):
        values = [value for value in draw.values if value.dtype == x.dtype and fits(value)]
        if values:
            value = draw.choice(values)
            return value.name, [value], value.facts, value.shape
    if np.prod(shape) > 400:
        raise Unsuitable
    array, facts = draw.array(tuple(shape), x.dtype)
    return literal(array), [], facts, tuple(shape)


def _products(facts: Facts, other: Facts) -> Facts:
    """Facts of products that are summed. Whether infinities are multiplied with zeros, nobody says:
    XLA selects where a factor is a converted predicate, and a convolution may skip its padding."""
    products = multiplied(facts, other)
    return replace(products, absolute=UNKNOWN) if products.special else products


def _result(draw: Draw, x: Value, other: Facts, count: int) -> tuple[Facts, str]:
    """Facts of sums of products, and the type that is asked for."""
    products = _products(x.facts, other)
    kind = x.dtype
    preferred = ""
    if draw.chance(0.3):
        kind = jnp.dtype("float32" if is_float(x.dtype) else "int32")
        preferred = f", preferred_element_type='{kind.name}'"
    facts = summed(products, count, jnp.dtype("float32"))
    if not is_float(kind):
        facts = through_float32(summed(products, count, kind))
        if facts.bound > float(jnp.iinfo(kind).max):
            # sums of integers beyond their type saturate on the way back from FP32
            facts = replace(facts, bound=float(jnp.iinfo(kind).max))
    return facts, preferred


def dot(draw: Draw) -> Line:
    """`dot_general`: batch and contracting dimensions in any order."""
    x = draw.value(numeric, lambda value: 1 <= len(value.shape) <= 4 and value.size > 0)
    rank = len(x.shape)
    axes = draw.permutation(rank)
    batches = draw.integer(0, min(2, rank - 1)) if draw.chance(0.5) else 0
    contracted = draw.integer(0 if draw.chance(0.1) else 1, min(2, rank - batches))
    own_batch, own_contract = axes[:batches], axes[batches : batches + contracted]
    free = [draw.choice((1, 2, 3, 5, 8)) for _ in range(draw.integer(0, 2))]
    dims = [("b", i) for i in range(batches)] + [("k", i) for i in range(contracted)]
    dims += [("f", i) for i in range(len(free))]
    sources = {
        "b": [x.shape[axis] for axis in own_batch],
        "k": [x.shape[axis] for axis in own_contract],
        "f": free,
    }
    layout = [dims[place] for place in draw.permutation(len(dims))]
    shape = [sources[role][number] for role, number in layout]

    def fits(value: Value) -> bool:
        if len(value.shape) != len(layout):
            return False
        return all(
            role == "f" or size == sources[role][number]
            for size, (role, number) in zip(value.shape, layout, strict=True)
        )

    other, reads, facts, other_shape = _second(draw, x, fits, shape)
    count = int(np.prod(sources["k"]))
    if x.size * np.prod(other_shape) // max(1, count * np.prod(sources["b"])) > MAX_PRODUCTS:
        raise Unsuitable
    other_batch = [layout.index(("b", i)) for i in range(batches)]
    other_contract = [layout.index(("k", i)) for i in range(contracted)]
    numbers = f"(({own_contract}, {other_contract}), ({own_batch}, {other_batch}))"
    result, preferred = _result(draw, x, facts, count)
    return line(f"lax.dot_general({x.name}, {other}, {numbers}{preferred})", [x, *reads], result)


def convolution(draw: Draw) -> Line:
    """`conv_general_dilated`: dimensions in any order, strides, padding, dilations, groups."""
    x = draw.value(numeric, lambda value: 3 <= len(value.shape) <= 4 and 0 < value.size < 1500)
    rank = len(x.shape)
    letters = "NC" + "HW"[: rank - 2]
    operand = "".join(letters[place] for place in draw.permutation(rank))
    kernel_letters = "IO" + "HW"[: rank - 2]
    kernel = "".join(kernel_letters[place] for place in draw.permutation(rank))
    output = "".join(letters[place] for place in draw.permutation(rank))
    size = dict(zip(operand, x.shape, strict=True))
    groups, batch_groups = 1, 1
    divisors = [n for n in (2, 3, 4) if size["C"] % n == 0]
    if draw.chance(0.3) and divisors:
        groups = draw.choice(divisors)
    elif draw.chance(0.15) and size["N"] % 2 == 0:
        batch_groups = 2
    inputs = size["C"] // groups
    outputs = draw.choice((1, 2, 3)) * groups * batch_groups
    spatial = {letter: draw.integer(1, 3) for letter in letters[2:]}
    sizes = {"I": inputs, "O": outputs, **spatial}
    shape = [sizes[letter] for letter in kernel]
    other, reads, facts, _ = _second(draw, x, lambda value: value.shape == tuple(shape), shape)
    strides = [draw.choice((1, 1, 2, 3)) for _ in spatial]
    padding: str | list[tuple[int, int]] = draw.choice(("SAME", "VALID"))
    if draw.chance(0.5):
        # XLA:CPU reads past its input if padding is negative in front alone, as (-1, 1)
        padding = [(draw.integer(0, 2), draw.integer(-1, 3)) for _ in spatial]
    dilations = ""
    if draw.chance(0.4):
        lhs = [draw.choice((1, 1, 2, 3)) for _ in spatial]
        rhs = [draw.choice((1, 2)) for _ in spatial]
        dilations = f", lhs_dilation={lhs}, rhs_dilation={rhs}"
        if isinstance(padding, str):
            padding = [(1, 1)] * len(lhs)
    count = inputs * int(np.prod(list(spatial.values())))
    result, preferred = _result(draw, x, facts, count)
    text = (
        f"lax.conv_general_dilated({x.name}, {other}, {strides}, {padding!r}{dilations}, "
        f"dimension_numbers=({operand!r}, {kernel!r}, {output!r}), feature_group_count={groups}, "
        f"batch_group_count={batch_groups}{preferred})"
    )
    return line(text, [x, *reads], result)


def einsum(draw: Draw) -> Line:
    x = draw.value(numeric, lambda value: len(value.shape) == 2 and 0 < value.size < 600)
    formula = draw.choice(("ij,ij->", "ij,ij->i", "ij,kj->ki", "ij,ij->ji", "ij,ik->jk"))
    shape = (
        x.shape if "k" not in formula else (x.shape[0], 3) if "ik" in formula else (3, x.shape[1])
    )
    other, reads, facts, _ = _second(draw, x, lambda value: value.shape == shape, list(shape))
    result = summed(_products(x.facts, facts), x.size, jnp.dtype("float32"))
    if not is_float(x.dtype):
        result = through_float32(result)
    return line(f"jnp.einsum('{formula}', {x.name}, {other})", [x, *reads], result)


KINDS: Mapping[str, Kind] = {
    each.__name__: each for each in (dot, dot, convolution, convolution, einsum)
}
