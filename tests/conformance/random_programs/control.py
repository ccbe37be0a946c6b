"""Loops and branches. What they carry is bounded in every turn, so that facts hold for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tests.conformance.random_programs.draw import (
    Draw,
    Line,
    boolean,
    exact,
    finite,
    line,
    nonempty,
    numeric,
    ranked,
    wide,
)
from tests.conformance.random_programs.facts import Facts, is_float, joined, summed
from tests.conformance.random_programs.program import Value

Kind = Callable[[Draw], Line]


def _lattice(value: Value) -> bool:
    """Multiples of a power of two, of which sums are exact."""
    facts = value.facts
    return facts.exact and bool(facts.quantum) and facts.bound <= 64


def _turn(draw: Draw, x: Value, carried: str, other: str) -> str:
    """One turn of a loop, as an expression that stays within 64."""
    constant = draw.integer(-3, 3)
    options = (
        f"{carried} - {other}", f"{carried} + {constant}", f"lax.max({carried}, {other})",
        f"jnp.where({carried} > {constant}, {other}, {carried} + 1)", f"-{carried} + {other}",
        f"lax.rev({carried}, (0,)) + {other}" if x.shape else f"{other} - {carried}",
        f"jnp.abs({carried}) - {constant}",
    )  # fmt: skip
    text = draw.choice(options)
    return f"jnp.clip({text}, {-64 if x.dtype.name[0] != 'u' else 0}, 64).astype('{x.dtype.name}')"


def _loop_facts(x: Value, *others: Facts) -> Facts:
    facts = joined(x.facts, Facts(64, min(1.0, x.facts.quantum)), *others)
    return replace(facts, any_zero=True)


def _is_small(value: Value) -> bool:
    return value.size <= 600


def fori(draw: Draw) -> Line:
    x = draw.value(numeric, nonempty, wide, _lattice, _is_small)
    first = draw.integer(-2, 2)
    trips = draw.integer(0, 4)
    bound = str(first + trips)
    reads = [x]
    counters = [v for v in draw.values if v.dtype.name == "int32" and not v.shape and exact(v)]
    if counters and draw.chance(0.5):
        counter = draw.choice(counters)
        bound = f"jnp.clip({counter.name}, {first - 1}, {first + 5})"
        reads.append(counter)
    body = _turn(draw, x, "c", draw.choice((x.name, f"i.astype('{x.dtype.name}')")))
    return line(f"lax.fori_loop({first}, {bound}, lambda i, c: {body}, {x.name})", reads,
                _loop_facts(x))  # fmt: skip


def while_loop(draw: Draw) -> Line:
    x = draw.value(numeric, nonempty, wide, _lattice, _is_small, finite)
    body = _turn(draw, x, "c", x.name)
    definitions = (
        "def {name}_more(state):\n    i, c = state\n"
        f"    return (i < {draw.integer(0, 5)}) & (c.reshape(-1)[0] < {draw.integer(-4, 60)})\n"
        "def {name}_turn(state):\n    i, c = state\n"
        f"    return i + 1, {body}"
    )
    text = (
        f"lax.while_loop({{name}}_more, {{name}}_turn, (np.int32({draw.integer(-2, 1)}), {x.name}))"
    )
    return line(text, [x], Facts(8, 1), _loop_facts(x), definitions=definitions)


def scan(draw: Draw) -> Line:
    x = draw.value(numeric, ranked, wide, _lattice, _is_small, lambda value: value.shape[0] < 10)
    row = replace(x, shape=x.shape[1:])
    body = _turn(draw, row, "c", "row")
    output = draw.choice(("c", "row + c", "(c > 0, row)[1]", "c * row"))
    definitions = f"def {{name}}_turn(c, row):\n    return {body}, {output}"
    reverse, unroll = draw.chance(0.4), draw.choice((1, 1, 2))
    text = f"lax.scan({{name}}_turn, {x.name}[0], {x.name}, reverse={reverse}, unroll={unroll})"
    facts = _loop_facts(x)
    out = replace(facts, bound=64 * (64 + x.facts.bound), quantum=facts.quantum**2)
    return line(text, [x], facts, out, definitions=definitions)


def stacked(draw: Draw) -> Line:
    """Rows of a stack at places that a loop's counter says, within it or clamped."""
    x = draw.value(numeric, ranked, nonempty, wide, _lattice, _is_small)
    size = x.shape[0]
    places = ("i", "i + 1", f"{size - 1} - i", f"i * 2 - {draw.integer(0, 3)}", "i // 2")

    def row(source: str) -> str:
        return f"lax.dynamic_index_in_dim({source}, {draw.choice(places)}, 0, False)"

    body = _turn(draw, replace(x, shape=x.shape[1:]), row(draw.choice(("c", x.name))), row(x.name))
    first = draw.integer(-1, 1)
    bound = first + draw.choice((size, draw.integer(0, size)))
    update = f"lax.dynamic_update_index_in_dim(c, {body}, {draw.choice(places)}, 0)"
    return line(f"lax.fori_loop({first}, {bound}, lambda i, c: {update}, {x.name})", [x],
                _loop_facts(x))  # fmt: skip


def associative(draw: Draw) -> Line:
    x = draw.value(numeric, ranked, wide, _lattice, _is_small)
    axis = draw.integer(0, len(x.shape) - 1)
    name = draw.choice(("add", "maximum"))
    facts = replace(x.facts, any_zero=True)
    if name == "add":
        facts = summed(x.facts, x.shape[axis], x.dtype, 2.0**-8 if is_float(x.dtype) else 2.0**-24)
    text = f"lax.associative_scan(jnp.{name}, {x.name}, axis={axis}, reverse={draw.chance(0.3)})"
    return line(text, [x], facts)


def cond(draw: Draw) -> Line:
    x = draw.value(numeric, wide, _lattice)
    predicates = [v for v in draw.values if boolean(v) and not v.shape and exact(v)]
    reads = [x]
    if predicates and draw.chance(0.7):
        predicate = draw.choice(predicates)
        reads.append(predicate)
        text = predicate.name
    else:
        text = f"jnp.sum({x.name}) {draw.choice(('>', '<'))} {draw.integer(-2, 2)}"
    branches = ", ".join(f"lambda c: {_turn(draw, x, 'c', x.name)}" for _ in range(2))
    return line(f"lax.cond({text}, {branches}, {x.name})", reads, _loop_facts(x))


def switch(draw: Draw) -> Line:
    x = draw.value(numeric, wide, _lattice)
    count = draw.integer(1, 4)
    branches = ", ".join(f"lambda c: {_turn(draw, x, 'c', x.name)}" for _ in range(count))
    text = f"lax.switch({draw.index(3)}, [{branches}], {x.name})"
    reads = [x, *(v for v in draw.values if f"({v.name}[" in text or f"({v.name}," in text)]
    return line(text, reads, _loop_facts(x))


def mapped(draw: Draw) -> Line:
    x = draw.value(numeric, ranked, wide, _lattice, _is_small)
    body = _turn(draw, replace(x, shape=x.shape[1:]), "c", "c")
    name = draw.choice(("jax.vmap(lambda c: {})({})", "lax.map(lambda c: {}, {})"))
    return line(name.format(body, x.name), [x], _loop_facts(x))


def nested(draw: Draw) -> Line:
    """A function of its own."""
    x = draw.value(numeric, wide, _lattice)
    body = _turn(draw, x, "c", "c")
    name = draw.choice(("jax.jit", "jax.checkpoint"))
    return line(f"{name}(lambda c: {body})({x.name})", [x], _loop_facts(x))


KINDS: Mapping[str, Kind] = {
    each.__name__: each
    for each in (fori, while_loop, scan, stacked, associative, cond, switch, mapped, nested)
}
