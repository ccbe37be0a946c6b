"""Reductions, running sums and windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from tests.conformance.random_programs.draw import (
    Draw,
    Line,
    Unsuitable,
    boolean,
    exact,
    finite,
    floating,
    line,
    numeric,
    ranked,
    wide,
)
from tests.conformance.random_programs.elementwise import FP32, ULPS
from tests.conformance.random_programs.facts import Facts, is_float, joined, summed
from tests.conformance.random_programs.program import Value

Kind = Callable[[Draw], Line]


def _axes(draw: Draw, value: Value) -> tuple[int, ...]:
    order = draw.permutation(len(value.shape))
    return tuple(order[: draw.integer(1, len(order))])


def total(draw: Draw) -> Line:
    x = draw.value(ranked, wide, numeric)
    axes = _axes(draw, x)
    count = int(np.prod([x.shape[axis] for axis in axes]))
    text = f"jnp.sum({x.name}, axis={axes}, keepdims={draw.chance(0.3)}, dtype='{x.dtype.name}')"
    return line(text, [x], summed(x.facts, count, x.dtype))


def extreme(draw: Draw) -> Line:
    x = draw.value(ranked, numeric)
    name = draw.choice(("max", "min"))
    facts = replace(x.facts, any_zero=True)
    return line(f"jnp.{name}({x.name}, axis={_axes(draw, x)})", [x], facts)


def product(draw: Draw) -> Line:
    x = draw.value(ranked, wide, exact, lambda value: floating(value) and value.facts.bound <= 16)
    axis = draw.integer(0, len(x.shape) - 1)
    count = x.shape[axis]
    if count > 6:
        raise Unsuitable
    facts = replace(x.facts, bound=x.facts.bound**count, quantum=x.facts.quantum**count)
    if not facts.quantum or facts.bound / facts.quantum > 2**24:
        facts = replace(facts, quantum=0.0).loosened(relative=2 * count * FP32)
    return line(f"jnp.prod({x.name}, axis={axis})", [x], facts)


def logic(draw: Draw) -> Line:
    x = draw.value(ranked, boolean, exact)
    name = draw.choice(("any", "all", "sum"))
    facts = Facts(float(x.size), 1)
    return line(f"jnp.{name}({x.name}, axis={_axes(draw, x)})", [x], facts)


def place(draw: Draw) -> Line:
    x = draw.value(ranked, exact)
    axis = draw.choice((None, draw.integer(0, len(x.shape) - 1)))
    name = draw.choice(("argmax", "argmin"))
    return line(f"jnp.{name}({x.name}, axis={axis})", [x], Facts(float(x.size), 1))


def with_places(draw: Draw) -> Line:
    """A reduction of two operands at once, with a constant that takes part."""
    x = draw.value(ranked, exact, floating, finite)
    axis = draw.integer(0, len(x.shape) - 1)
    definitions = (
        "def {name}_pick(left, right):\n"
        "    first = (left[0] > right[0]) | ((left[0] == right[0]) & (left[1] < right[1]))\n"
        "    return tuple(jnp.where(first, a, b) for a, b in zip(left, right, strict=True))"
    )
    text = (
        f"lax.reduce(({x.name}, lax.broadcasted_iota('int32', {x.shape}, {axis})), "
        f"(np.asarray(-inf).astype('{x.dtype.name}'), np.int32(-1)), {{name}}_pick, ({axis},))"
    )
    places = Facts(float(max(x.shape[axis], 1)), 1)
    return line(text, [x], replace(x.facts, any_zero=True), places, definitions=definitions)


def running(draw: Draw) -> Line:
    x = draw.value(ranked, wide, numeric)
    axis = draw.integer(0, len(x.shape) - 1)
    name = draw.choice(("cumsum", "cumsum", "cummax", "cummin", "cumprod", "cumlogsumexp"))
    facts = replace(x.facts, any_zero=True)
    count = x.shape[axis]
    precision = float(jnp.finfo(x.dtype).eps) / 2 if is_float(x.dtype) else 2.0**-24
    if name == "cumsum":
        facts = summed(x.facts, count, x.dtype, precision)
    elif name == "cumprod":
        if not is_float(x.dtype) or not x.facts.exact or x.facts.bound > 8 or count > 5:
            raise Unsuitable
        facts = replace(facts, bound=x.facts.bound**count, quantum=0.0)
        facts = facts.loosened(relative=4 * count * precision)
    elif name == "cumlogsumexp":
        if not is_float(x.dtype) or not x.facts.exact or x.facts.bound > 20 or x.facts.special:
            raise Unsuitable
        bound = x.facts.bound + 6
        facts = replace(facts, bound=bound, quantum=0.0)
        facts = facts.loosened(absolute=2 * ULPS * count * precision * bound)
    text = f"lax.{name}({x.name}, axis={axis}, reverse={draw.chance(0.4)})"
    return line(text, [x], facts)


def window(draw: Draw) -> Line:
    x = draw.value(ranked, wide, numeric, lambda value: len(value.shape) < 4)
    sizes = [draw.integer(1, min(3, dim)) for dim in x.shape]
    strides = [draw.integer(1, 2) for _ in sizes]
    if draw.chance(0.3):
        padding = f"'{draw.choice(('SAME', 'VALID'))}'"
    else:
        padding = str([(draw.integer(0, 2), draw.integer(0, 2)) for _ in sizes])
    extra = ""
    if draw.chance(0.3) and not padding.startswith("'"):
        base = [draw.integer(1, 2) for _ in sizes]
        dilation = [draw.integer(1, 2) for _ in sizes]
        extra = f", base_dilation={base}, window_dilation={dilation}"
    name = draw.choice(("add", "max", "min"))
    if name == "add":
        initial, facts = "0", Facts(0, 1)
        facts = summed(x.facts, int(np.prod(sizes)), x.dtype)
    else:
        initial, own = draw.scalar(x.dtype)
        facts = replace(joined(x.facts, own), any_zero=True)
    zero = f"np.asarray({initial}).astype('{x.dtype.name}')"
    text = f"lax.reduce_window({x.name}, {zero}, lax.{name}, {sizes}, {strides}, {padding}{extra})"
    return line(text, [x], facts)


def pooled_gradient(draw: Draw) -> Line:
    """Select-and-scatter."""
    x = draw.value(ranked, exact, lambda value: value.dtype.name == "float32")
    sizes = [draw.integer(1, min(3, dim)) for dim in x.shape]
    strides = [draw.integer(1, 2) for _ in sizes]
    text = (
        f"jax.grad(lambda x: lax.reduce_window(x, -inf, lax.max, {sizes}, {strides}, "
        f"'{draw.choice(('SAME', 'VALID'))}').sum())({x.name})"
    )
    if x.facts.special:
        raise Unsuitable
    return line(text, [x], Facts(float(np.prod(sizes)), 1, any_zero=True))


def normalised(draw: Draw) -> Line:
    """What is made of rows in models."""
    x = draw.value(ranked, exact, finite, lambda value: value.dtype.name in ("float32", "bfloat16"))
    if x.facts.bound > 100:
        raise Unsuitable
    axis = draw.integer(0, len(x.shape) - 1)
    precision = max(FP32, float(jnp.finfo(x.dtype).eps))
    count = x.shape[axis]
    name = draw.choice(("jax.nn.softmax", "jax.nn.logsumexp", "jax.nn.log_softmax"))
    bound = 1.0 if name == "jax.nn.softmax" else 2 * x.facts.bound + 6
    # exponents are as far off as they are large; then a sum of positive numbers
    difference = (2 * ULPS + count + 2 * x.facts.bound) * precision * max(bound, 1.0)
    facts = Facts(bound, 0, absolute=difference, special=True)
    return line(f"{name}({x.name}, axis={axis})", [x], facts)


KINDS: Mapping[str, Kind] = {
    f"reduce_{each.__name__}": each
    for each in (
        total, extreme, product, logic, place, with_places, running, window, pooled_gradient,
        normalised,
    )
}  # fmt: skip
