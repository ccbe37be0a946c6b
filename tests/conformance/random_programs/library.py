"""Functions of `jax.numpy` that are made of many operations, as people call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from tests.conformance.random_programs.draw import (
    Draw,
    Line,
    Unsuitable,
    exact,
    finite,
    floating,
    integral,
    line,
    nonempty,
    numeric,
    ranked,
    wide,
)
from tests.conformance.random_programs.elementwise import operand
from tests.conformance.random_programs.facts import Facts, joined, summed, through_float32
from tests.conformance.random_programs.program import Value

Kind = Callable[[Draw], Line]


def _small(value: Value) -> bool:
    return 0 < value.size <= 200


def _row(value: Value) -> bool:
    return len(value.shape) == 1 and 0 < value.size <= 60


def rearranged(draw: Draw) -> Line:
    """Elements in other places, and constants."""
    x = draw.value(ranked, _small)
    text = draw.choice((
        "jnp.flip({})", "jnp.ravel({})", "jnp.diag(jnp.ravel({})[:7])", "jnp.stack([{0}, {0}], -1)",
        "jnp.atleast_3d({})", "jnp.rot90(jnp.atleast_2d({}))", "jnp.swapaxes({}, 0, -1)",
        "jnp.delete({}, 0, axis=0)", "jnp.insert({0}, 0, {0}[0], axis=0)", "jnp.append({0}, {0})",
        "jnp.array_split({}, 3)[1]", "jnp.pad({}, 2, mode='edge')", "jnp.pad({}, 1, mode='wrap')",
        "jnp.pad({}, 1)", "jnp.resize({}, (3, 5))", "jnp.hstack([{0}, {0}])",
    ))  # fmt: skip
    return line(text.format(x.name), [x], joined(x.facts, Facts(0, x.facts.quantum)))


def counted(draw: Draw) -> Line:
    """Whole numbers that say where something is, or how often."""
    x = draw.value(ranked, exact, finite, _small, wide, numeric)
    text = draw.choice((
        "jnp.count_nonzero({}, axis=0)", "jnp.nonzero({}, size=5)[0]", "jnp.argwhere({}, size=4)",
        "jnp.searchsorted(jnp.sort(jnp.ravel({0})), {0})", "jnp.digitize({}, np.array([-1, 0, 2]))",
        "jnp.lexsort(({0}, -{0}))", "jnp.isin({0}, jnp.ravel({0})[:2])", "jnp.allclose({0}, {0})",
        "jnp.array_equal({0}, -{0})", "jnp.bincount(jnp.ravel({}).astype('int32'), length=6)",
        "jnp.argpartition({}, 0)[..., :1]", "jnp.signbit({})", "jnp.flatnonzero({}, size=3)",
    ))  # fmt: skip
    if "signbit" in text and x.facts.any_zero:
        raise Unsuitable
    return line(text.format(x.name), [x], Facts(float(x.size), 1))


def unique(draw: Draw) -> Line:
    x = draw.value(ranked, exact, finite, _small, wide, numeric)
    text = draw.choice((
        "jnp.unique({}, size=6)", "jnp.union1d({0}, {0}, size=4)",
        "jnp.setdiff1d({0}, {0}[:1], size=3)",
        "jnp.median(jnp.ravel({})[:1])", "jnp.partition({}, 0)[..., 0]",
    ))  # fmt: skip
    return line(text.format(x.name), [x], replace(x.facts, any_zero=True, special=True))


def differences(draw: Draw) -> Line:
    x = draw.value(ranked, _small, numeric, wide)
    if not x.facts.quantum or x.facts.bound / x.facts.quantum > 2**5:
        raise Unsuitable
    text = draw.choice((
        "jnp.diff({}, axis=0)", "jnp.ediff1d({})", "jnp.ptp({}, axis=0)", "{0} - jnp.flip({0})",
        "jnp.trace(jnp.atleast_2d({0}[:2]))", "jnp.nansum({0}, axis=0)", "jnp.nanmax({0}, axis=-1)",
    ))  # fmt: skip
    facts = summed(x.facts, x.size, x.dtype, 2.0**-8)
    if x.dtype.name.startswith("uint"):
        facts = replace(facts, bound=2.0**32)
    return line(text.format(x.name), [x], replace(facts, special=True))


def segments(draw: Draw) -> Line:
    x = draw.value(ranked, _small, numeric, wide)
    ids = [draw.integer(-1, 4) for _ in range(x.shape[0])]
    name = draw.choice(("segment_sum", "segment_max", "segment_min"))
    ordered = draw.chance(0.3)
    text = (
        f"jax.ops.{name}({x.name}, np.array({sorted(ids) if ordered else ids}), num_segments=4, "
        f"indices_are_sorted={ordered})"
    )
    facts = replace(x.facts, any_zero=True, special=True)
    if name == "segment_sum":
        facts = summed(x.facts, x.shape[0], x.dtype)
        facts = facts if floating(x) else through_float32(facts)
    elif integral(x):  # empty segments have the limit of the type
        facts = replace(facts, bound=2.0**32)
    return line(text, [x], facts)


def one_hot(draw: Draw) -> Line:
    x = draw.value(integral, exact, _small)
    dtype = draw.choice(("float32", "bfloat16", "int32", "bool"))
    return line(
        f"jax.nn.one_hot({x.name}, {draw.integer(1, 6)}, dtype='{dtype}')", [x], Facts(1, 1)
    )


def whole_numbers(draw: Draw) -> Line:
    x = draw.value(integral, exact, nonempty, wide, lambda value: value.facts.bound < 200)
    other, reads, _ = operand(draw, x, exactly=True)
    text = draw.choice((
        "jnp.gcd({}, {})", "jnp.divmod({}, {})[0]", "jnp.divmod({}, {})[1]", "lax.mulhi({}, {})",
        "jnp.fmod({}, {})", "jnp.power({0}, {1} & 3)", "jnp.left_shift({}, {})",
        "jnp.hypot({}, {}) > 3",
    ))  # fmt: skip
    return line(text.format(x.name, other), [x, *reads], Facts(2.0**32, 1))


def taken_apart(draw: Draw) -> Line:
    """Numbers by their bits."""
    x = draw.value(floating, exact, wide, nonempty, finite, lambda value: not value.facts.any_zero)
    text, facts = draw.choice((
        ("jnp.frexp({})[0]", Facts(1, 0)), ("jnp.frexp({})[1]", Facts(200, 1)),
        ("jnp.modf({})[0]", Facts(1, 0)), ("jnp.modf({})[1]", Facts(x.facts.bound, 1)),
        ("jnp.ldexp({}, 3)", Facts(8 * x.facts.bound, 0)),
        ("jnp.copysign({0}, -{0})", Facts(x.facts.bound, 0)),
        ("jnp.nan_to_num({})", x.facts), ("jnp.heaviside({}, 0.5)", Facts(1, 0.5)),
        ("jnp.round({}, 0)", Facts(x.facts.bound + 1, 1)),
        ("jnp.trunc({})", Facts(x.facts.bound, 1)),
        ("jnp.spacing({})", Facts(x.facts.bound, 0, absolute=2e-38)),
    ))  # fmt: skip
    return line(text.format(x.name), [x], facts)


def bytes_apart(draw: Draw) -> Line:
    x = draw.value(integral, exact, _small, wide)
    text = draw.choice(("jnp.unpackbits({})", "jnp.packbits({} > 3)", "jnp.unpackbits({}[::-1])"))
    return line(text.format(f"jnp.ravel({x.name}).astype('uint8')"), [x], Facts(255, 1))


def outer(draw: Draw) -> Line:
    x = draw.value(numeric, _row, wide, exact)
    if not x.facts.quantum or x.facts.bound > 16:
        raise Unsuitable
    text = draw.choice((
        "jnp.outer({0}, {0})", "jnp.kron({0}, {0}[:2])", "jnp.tri(4, dtype={0}.dtype) * {0}[0]",
        "jnp.vander({0}, 2)", "jnp.meshgrid({0}, {0})[1]", "jnp.convolve({0}, {0}[:3])",
        "jnp.correlate({0}, {0}[:2], mode='same')", "jnp.inner({0}, {0})",
        "jnp.cross({0}[:3], {0}[:3])",
    ))  # fmt: skip
    bound, quantum = x.facts.bound**2, x.facts.quantum**2
    count = x.size
    facts = summed(replace(x.facts, bound=bound, quantum=quantum), count, x.dtype, 2.0**-8)
    if integral(x):
        facts = replace(through_float32(facts), bound=2.0**32)
    return line(text.format(x.name), [x], replace(facts, bound=max(facts.bound, 1.0)))


def polynomials(draw: Draw) -> Line:
    x = draw.value(floating, exact, wide, nonempty, lambda value: value.facts.bound <= 8)
    if not x.facts.quantum or x.dtype.name != "float32":
        raise Unsuitable
    coefficients = [draw.integer(-3, 3) for _ in range(3)]
    text = f"jnp.polyval(np.array({coefficients}, 'float32'), {x.name})"
    bound = 3 * (x.facts.bound**2 + x.facts.bound + 1)
    quantum = min(1.0, x.facts.quantum**2)
    return line(text, [x], replace(x.facts, bound=bound, quantum=quantum, any_zero=True))


def masked(draw: Draw) -> Line:
    x = draw.value(ranked, exact, numeric, wide, _small)
    axis = draw.integer(0, len(x.shape) - 1)
    name = draw.choice(("sum", "max", "min"))
    initial = ", initial=0" if name != "sum" else ""
    text = f"jnp.{name}({x.name}, axis={axis}, where={x.name} > 1{initial})"
    facts = replace(joined(x.facts, Facts(0, x.facts.quantum)), any_zero=True)
    if name == "sum":
        facts = summed(facts, x.shape[axis], x.dtype)
    return line(text, [x], facts)


def choices(draw: Draw) -> Line:
    x = draw.value(exact, numeric, wide, _small)
    other, reads, facts = operand(draw, x)
    number = draw.integer(-3, 3) if not x.dtype.name.startswith("uint") else 1
    text = (
        f"jnp.select([{x.name} > {number}, {x.name} == {number}], [{x.name}, {other}], "
        f"default={abs(number)})"
    )
    return line(text, [x, *reads], joined(x.facts, facts, Facts(3, 1)))


def largest(draw: Draw) -> Line:
    """Exact although its name says otherwise: the whole row is searched."""
    x = draw.value(ranked, exact, finite, lambda value: value.dtype.name in ("float32", "bfloat16"))
    count = draw.integer(1, x.shape[-1])
    name = draw.choice(("approx_max_k", "approx_min_k"))
    text = f"lax.{name}({x.name}, {count}, recall_target=1.0)[0]"
    return line(text, [x], replace(x.facts, any_zero=True))


def gradient(draw: Draw) -> Line:
    """Derivatives of what moves and selects elements."""
    x = draw.value(ranked, exact, finite, _small, lambda value: value.dtype.name == "float32")
    axis = draw.integer(0, len(x.shape) - 1)
    shape = [dim for place, dim in enumerate(x.shape) if place != axis]
    text = draw.choice((
        "(jnp.flip(c) * 2).sum()", "jnp.where(c > 0, c, -c).sum()", "c[::2].sum()", "(c * c).sum()",
        f"jnp.concatenate([c, c], {axis}).sum()", f"(jnp.cumsum(c, {axis})).sum()",
        f"lax.pad(c, 0.0, [(1, -1, 1)] * {len(x.shape)}).sum()", f"jnp.sort(c, {axis})[0].sum()",
        f"jnp.take(c, np.array([0, 0, -1]), axis={axis}).sum()", "lax.clamp(-1.0, c, 1.0).sum()",
        f"jnp.broadcast_to(jnp.expand_dims(c, {axis}), {(*shape[:0], 2, *x.shape)} ).sum()",
    ))  # fmt: skip
    if np.prod(x.shape) > 100:
        raise Unsuitable
    bound = max(2 * x.facts.bound, 2.0 * max(x.shape))
    facts = Facts(bound, min(1.0, x.facts.quantum), any_zero=True)
    return line(f"jax.grad(lambda c: {text})({x.name})", [x], facts)


KINDS: Mapping[str, Kind] = {
    f"numpy_{each.__name__}": each
    for each in (
        rearranged, counted, unique, differences, segments, one_hot, whole_numbers, taken_apart,
        bytes_apart, outer, polynomials, masked, choices, largest, gradient,
    )
}  # fmt: skip
