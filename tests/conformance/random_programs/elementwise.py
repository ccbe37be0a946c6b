"""Element-wise operations, comparisons, selections and conversions."""

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
    integral,
    line,
    numeric,
    wide,
)
from tests.conformance.random_programs.facts import (
    FLOATS,
    INTEGERS,
    UNKNOWN,
    Facts,
    added,
    is_float,
    joined,
    multiplied,
)
from tests.conformance.random_programs.program import Value

Kind = Callable[[Draw], Line]

ULPS = 4
"""Functions of one place: what XLA:CPU and numpy's library are off from each other at most."""

FP32 = 2.0**-23


def operand(draw: Draw, like: Value, *, exactly: bool = False) -> tuple[str, list[Value], Facts]:
    """A second operand of the type of a first: text, what it reads, facts."""

    def fits(value: Value) -> bool:
        if value.dtype != like.dtype or (exactly and not value.facts.exact):
            return False
        try:
            return np.broadcast_shapes(value.shape, like.shape) == like.shape
        except ValueError:
            return False

    fitting = [value for value in draw.values if fits(value)]
    if fitting and draw.chance(0.65):
        value = draw.choice(fitting)
        same = value.shape == like.shape
        text = value.name if same else f"jnp.broadcast_to({value.name}, {like.shape})"
        return text, [value], value.facts
    text, facts = draw.scalar(like.dtype)
    return f"jnp.full({like.shape}, {text})", [], facts


def _range(facts: Facts, low: float, high: float) -> bool:
    return facts.bound <= high and -facts.bound >= low


def _rough(bound: float, facts: Facts, relative: float = 0.0) -> Facts:
    return replace(facts, bound=bound, quantum=0.0, relative=relative, absolute=0.0, special=True)


def negate(draw: Draw) -> Line:
    x = draw.value(numeric)
    name = draw.choice(("neg", "abs"))
    return line(f"lax.{name}({x.name})", [x], _wrapped(x, x.facts))


def _wrapped(x: Value, facts: Facts) -> Facts:
    """Below zero begin the greatest unsigned integers."""
    return replace(facts, bound=UNKNOWN) if x.dtype.name.startswith("uint") else facts


def whole(draw: Draw) -> Line:
    x = draw.value(floating, exact)
    name = draw.choice((
        "lax.floor({})", "lax.ceil({})", "lax.round({}, lax.RoundingMethod.TO_NEAREST_EVEN)",
        "lax.round({}, lax.RoundingMethod.AWAY_FROM_ZERO)", "jnp.trunc({})", "jnp.rint({})",
    ))  # fmt: skip
    return line(name.format(x.name), [x], replace(x.facts, bound=x.facts.bound + 1, quantum=1.0))


def sign(draw: Draw) -> Line:
    x = draw.value(numeric, exact)
    return line(f"lax.sign({x.name})", [x], replace(x.facts, bound=1.0, quantum=1.0))


def classify(draw: Draw) -> Line:
    x = draw.value(floating, exact)
    name = draw.choice(("lax.is_finite", "jnp.isnan", "jnp.isneginf", "jnp.isinf"))
    return line(f"{name}({x.name})", [x], Facts(1, 1))


def _tame(facts: Facts) -> bool:
    """Arguments from which no function overflows or falls below the normal numbers."""
    return facts.bound <= 20


FUNCTIONS: Mapping[str, float] = {
    "jnp.exp": 5e8, "jnp.tanh": 1, "lax.logistic": 1, "jnp.sqrt": 10, "lax.rsqrt": 1e4,
    "jnp.cbrt": 10, "jnp.sin": 1, "jnp.cos": 1, "jnp.log": 20, "jnp.log1p": 20, "jnp.expm1": 5e8,
    "lax.erf": 1, "jnp.sinh": 5e8, "jnp.cosh": 5e8, "jnp.arctan": 2, "jnp.arcsinh": 5,
    "jnp.arcsin": 2, "jnp.arccos": 4, "jnp.arccosh": 5, "jnp.arctanh": 20, "jnp.exp2": 2e6,
    "jax.nn.silu": 20, "jax.nn.gelu": 20, "jax.nn.softplus": 25, "jax.nn.relu": 20,
}  # fmt: skip
"""Functions and a bound of their values on [-20, 20]."""

COMPOSED: Mapping[str, float] = {
    "jax.nn.silu": 2e-6, "jax.nn.gelu": 1e-5, "jax.nn.softplus": 1e-5, "jnp.arcsinh": 1e-6,
    "jnp.arccos": 2e-6, "jnp.arccosh": 1e-6, "jnp.arctanh": 1e-5, "jnp.cosh": 1e-6,
}  # fmt: skip
"""Functions of several steps that cancel: the absolute difference allowed besides."""


def function(draw: Draw) -> Line:
    x = draw.value(floating, exact, wide, lambda value: _tame(value.facts))
    name = draw.choice(tuple(FUNCTIONS))
    precision = max(FP32, float(jnp.finfo(x.dtype).eps))
    facts = _rough(FUNCTIONS[name], x.facts, ULPS * FP32 + (precision > FP32) * precision)
    facts = facts.loosened(absolute=COMPOSED.get(name, 0.0))
    return line(f"{name}({x.name})", [x], facts)


def smooth(draw: Draw) -> Line:
    """Functions that never make a difference larger."""
    x = draw.value(floating, wide, lambda value: _tame(value.facts))
    name = draw.choice(("jnp.tanh", "jnp.sin", "jnp.cos", "lax.logistic"))
    precision = max(FP32, float(jnp.finfo(x.dtype).eps))
    facts = _rough(1.0, x.facts).loosened(2 * ULPS * precision, x.facts.difference)
    return line(f"{name}({x.name})", [x], facts)


def add(draw: Draw) -> Line:
    x = draw.value(numeric)
    other, reads, facts = operand(draw, x)
    name = draw.choice(("add", "sub"))
    pair = [x.name, other] if draw.chance(0.7) else [other, x.name]
    result = replace(added(x.facts, facts), any_zero=True)  # XLA drops a zero whatever its sign
    return line(f"lax.{name}({', '.join(pair)})", [x, *reads], _wrapped(x, result))


def multiply(draw: Draw) -> Line:
    x = draw.value(numeric)
    other, reads, facts = operand(draw, x)
    return line(f"lax.mul({x.name}, {other})", [x, *reads], multiplied(x.facts, facts))


def divide(draw: Draw) -> Line:
    x = draw.value(exact, numeric)
    other, reads, facts = operand(draw, x, exactly=True)
    pair = (x.name, other) if draw.chance(0.7) else (other, x.name)
    text = f"lax.div({pair[0]}, {pair[1]})"
    both = joined(x.facts, facts)
    if not floating(x):
        return line(text, [x, *reads], replace(both, quantum=1.0))
    if both.any_zero:  # dividing by a zero of either sign
        both = replace(both, absolute=UNKNOWN)
    smallest = both.quantum or 1e-6
    precision = max(2 * FP32, float(jnp.finfo(x.dtype).eps))
    result = replace(both, bound=both.bound / smallest, quantum=0.0, special=True)
    return line(text, [x, *reads], result.loosened(relative=precision))


def extreme(draw: Draw) -> Line:
    x = draw.value()
    other, reads, facts = operand(draw, x)
    name = draw.choice(("max", "min"))
    pair = (x.name, other) if draw.chance(0.7) else (other, x.name)
    result = replace(joined(x.facts, facts), any_zero=True)
    return line(f"lax.{name}({pair[0]}, {pair[1]})", [x, *reads], result)


def clamp(draw: Draw) -> Line:
    x = draw.value(numeric)
    (low, low_facts), (high, high_facts) = draw.scalar(x.dtype), draw.scalar(x.dtype)
    if low_facts.special or high_facts.special:  # functions of constant NaN are wrong on XLA:CPU
        raise Unsuitable
    facts = replace(joined(x.facts, low_facts, high_facts), any_zero=True)
    return line(f"lax.clamp({low}, {x.name}, {high})", [x], facts)


def remainder(draw: Draw) -> Line:
    x = draw.value(exact, numeric)
    other, reads, facts = operand(draw, x, exactly=True)
    name = draw.choice(("lax.rem", "lax.rem", "jnp.mod", "jnp.floor_divide"))
    if name == "jnp.floor_divide" and floating(x):
        name = "lax.rem"
    both = joined(x.facts, facts)
    bound = both.bound * (2 if name == "jnp.mod" else 1)
    result = replace(both, bound=bound, special=floating(x))
    return line(f"{name}({x.name}, {other})", [x, *reads], result)


def compare(draw: Draw) -> Line:
    x = draw.value(exact)
    other, reads, _ = operand(draw, x, exactly=True)
    name = draw.choice(("eq", "ne", "lt", "le", "gt", "ge"))
    return line(f"lax.{name}({x.name}, {other})", [x, *reads], Facts(1, 1))


def compare_constants(draw: Draw) -> Line:
    """Everything about it is known when it is compiled."""
    dtype = draw.dtype()
    left, _ = draw.scalar(dtype)
    right, _ = draw.scalar(dtype)
    name = draw.choice(("eq", "ne", "lt", "le", "gt", "ge"))
    return line(f"lax.{name}({left}, {right})", [], Facts(1, 1))


def combine_constants(draw: Draw) -> Line:
    dtype = draw.choice([jnp.dtype(name) for name in ("float32", "int32", "int8", "bfloat16")])
    (left, one), (right, two) = draw.scalar(dtype), draw.scalar(dtype)
    name = draw.choice(("add", "sub", "mul", "max", "min"))
    facts = {"mul": multiplied, "add": added, "sub": added}.get(name, joined)(one, two)
    return line(f"lax.{name}({left}, {right})", [], replace(facts, any_zero=True))


def select(draw: Draw) -> Line:
    x = draw.value()
    predicate = draw.value(boolean, lambda v: v.facts.exact and v.shape in ((), x.shape))
    other, reads, facts = operand(draw, x)
    pair = (x.name, other) if draw.chance(0.6) else (other, x.name)
    text = f"lax.select({predicate.name}, {pair[0]}, {pair[1]})"
    return line(text, [predicate, x, *reads], joined(x.facts, facts))


def where_compared(draw: Draw) -> Line:
    """A comparison with a constant and the selection that it is for."""
    x = draw.value(numeric, exact)
    scalar, _ = draw.scalar(x.dtype)
    on_true, one = draw.scalar(x.dtype)
    sign = draw.choice(("<", "<=", ">", ">=", "==", "!="))
    test = f"{x.name} {sign} {scalar}"
    branches = (x.name, on_true) if draw.chance(0.5) else (on_true, x.name)
    text = f"jnp.where({test}, {branches[0]}, {branches[1]})"
    return line(text, [x], joined(x.facts, one))


def logical(draw: Draw) -> Line:
    x = draw.value(lambda value: integral(value) or boolean(value), exact)
    other, reads, _ = operand(draw, x, exactly=True)
    name = draw.choice(("bitwise_and", "bitwise_or", "bitwise_xor"))
    limit = 1.0 if boolean(x) else float(jnp.iinfo(x.dtype).max) + 1
    return line(f"lax.{name}({x.name}, {other})", [x, *reads], Facts(limit, 1))


def bit_counts(draw: Draw) -> Line:
    x = draw.value(lambda value: integral(value) or boolean(value), exact)
    names = ("bitwise_not", "bitwise_not", "population_count")
    if x.dtype.name.startswith("uint"):  # XLA counts the zeros of negative constants wrongly
        names += ("clz",)
    name = draw.choice(names)
    limit = 1.0 if boolean(x) else float(jnp.iinfo(x.dtype).max) + 1
    return line(f"lax.{name}({x.name})", [x], Facts(limit, 1))


def shift(draw: Draw) -> Line:
    x = draw.value(integral, exact)
    other, reads, _ = operand(draw, x, exactly=True)
    name = draw.choice(("shift_left", "shift_right_logical", "shift_right_arithmetic"))
    limit = float(jnp.iinfo(x.dtype).max) + 1
    return line(f"lax.{name}({x.name}, {other})", [x, *reads], Facts(limit, 1))


def next_number(draw: Draw) -> Line:
    def normal(value: Value) -> bool:  # zero's neighbours are subnormal
        return not value.facts.any_zero

    x = draw.value(floating, exact, wide, normal)
    other, reads, facts = operand(draw, x, exactly=True)
    least = float(jnp.finfo(x.dtype).tiny)
    result = replace(joined(x.facts, facts), quantum=0.0, absolute=2 * least, special=True)
    return line(f"lax.nextafter({x.name}, {other})", [x, *reads], result)


def power(draw: Draw) -> Line:
    if draw.chance(0.5):
        x = draw.value(numeric, exact, wide, lambda value: value.facts.bound < 1000)
        exponent = draw.integer(0, 4)
        facts = Facts(1, 1, special=x.facts.special, any_zero=x.facts.any_zero)
        for _ in range(exponent):
            facts = multiplied(facts, x.facts)
        if not facts.quantum or facts.bound / facts.quantum > 2**24:
            facts = facts.loosened(relative=4 * FP32 if floating(x) else 0.0)
        return line(f"lax.integer_pow({x.name}, {exponent})", [x], facts)
    x = draw.value(floating, exact, wide, lambda value: value.facts.bound <= 8)
    exponent_text, facts = draw.scalar(x.dtype)
    if facts.bound > 8:
        exponent_text = "0.5" if draw.chance(0.5) else "3.0"
    text = f"jnp.power({x.name}, jnp.asarray({exponent_text}, '{x.dtype.name}'))"
    return line(text, [x], _rough(2e7, x.facts, 4 * ULPS * FP32))


def angle(draw: Draw) -> Line:
    x = draw.value(floating, exact, wide, lambda value: not value.facts.any_zero)
    other, reads, facts = operand(draw, x, exactly=True)
    result = _rough(4.0, x.facts, 2 * ULPS * FP32)
    if facts.any_zero:
        result = replace(result, absolute=UNKNOWN)
    return line(f"lax.atan2({x.name}, {other})", [x, *reads], result)


def convert(draw: Draw) -> Line:
    x = draw.value()
    options = (*FLOATS, *INTEGERS, "bool", "float32", "int32", "bfloat16")
    dtype = jnp.dtype(draw.choice(options))
    facts = x.facts
    if not is_float(dtype):
        if not facts.exact:
            x = draw.value(exact)
            facts = x.facts
        facts = replace(facts, quantum=1.0)
    return line(f"{x.name}.astype('{dtype.name}')", [x], facts)


def bitcast(draw: Draw) -> Line:
    def plain(value: Value) -> bool:
        return not value.facts.special and not value.facts.any_zero

    x = draw.value(numeric, exact, finite, plain, lambda value: value.dtype.name != "int4")
    targets = {1: ("int8", "uint8"), 2: ("int16", "uint16"), 4: ("int32", "uint32")}
    size = draw.choice((x.dtype.itemsize, x.dtype.itemsize, 1, 2, 4))
    text = f"lax.bitcast_convert_type({x.name}, '{draw.choice(targets[size])}')"
    return line(text, [x], Facts(2.0 ** (8 * size), 1))


def reduce_precision(draw: Draw) -> Line:
    x = draw.value(floating, wide)
    exponent, mantissa = draw.choice(((8, 7), (5, 10), (5, 2), (4, 3), (8, 3), (8, 23)))
    facts = x.facts
    limit = 2.0 ** (2 ** (exponent - 1))
    if facts.bound >= limit / 2:
        facts = replace(facts, bound=min(facts.bound, limit), special=True)
    quantum = facts.quantum
    if not quantum or facts.bound / quantum > 2 ** (mantissa + 1):
        least = 4.0 / limit if exponent < 8 else 0.0  # below the normal numbers
        facts = replace(facts, quantum=0.0)
        if not facts.exact:
            facts = facts.loosened(2.0**-mantissa, least)
    return line(f"lax.reduce_precision({x.name}, {exponent}, {mantissa})", [x], facts)


KINDS: Mapping[str, Kind] = {
    each.__name__: each
    for each in (
        negate, whole, sign, classify, function, smooth, add, add, multiply, divide, extreme,
        clamp, remainder, compare, compare_constants, combine_constants, select, where_compared,
        logical, bit_counts, shift, next_number, power, angle, convert, bitcast, reduce_precision,
    )
}  # fmt: skip
