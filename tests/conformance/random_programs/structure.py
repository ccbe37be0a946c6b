"""Loops over tuples, rules of derivatives, collectives; and numbers and factorisations that no
engine has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tests.conformance.random_programs.draw import (
    Draw,
    Line,
    Unsuitable,
    exact,
    finite,
    line,
    ranked,
)
from tests.conformance.random_programs.elementwise import FP32
from tests.conformance.random_programs.facts import Facts, summed
from tests.conformance.random_programs.program import Value

Kind = Callable[[Draw], Line]

_RANKS = 4


def _lattice(value: Value) -> bool:
    """Small multiples of a power of two."""
    facts = value.facts
    return facts.exact and bool(facts.quantum) and facts.bound <= 64 and value.size <= 600


def _float32(value: Value) -> bool:
    return value.dtype.name == "float32"


def _small(draw: Draw) -> Value:
    return draw.value(ranked, exact, finite, _lattice, _float32)


def tuple_scan(draw: Draw) -> Line:
    """A carry of a number, an array and another array, which change places."""
    x = _small(draw)
    sign, more = draw.choice(("-", "+")), draw.integer(-2, 2)
    definitions = (
        "def {name}_turn(carry, row):\n"
        "    count, (left, right) = carry\n"
        f"    left = jnp.clip(left {sign} row, -64, 64)\n"
        f"    return (count + {more}, (right, left)), (count * row, {{'sum': left + right}})"
    )
    text = (
        f"jax.tree.leaves(lax.scan({{name}}_turn, (np.float32({draw.integer(-3, 3)}), "
        f"({x.name}[0], jnp.ones_like({x.name}[0]))), {x.name}, reverse={draw.chance(0.5)}))"
    )
    trips = x.shape[0]
    number = Facts(3 + 2 * trips, 1, any_zero=True)
    kept = Facts(64, min(1.0, x.facts.quantum), any_zero=True)
    products = Facts(number.bound * x.facts.bound, x.facts.quantum, any_zero=True)
    sums = replace(kept, bound=128)
    return line(text, [x], number, kept, kept, products, sums, definitions=definitions)


def tuple_while(draw: Draw) -> Line:
    """Ends when a number says so, with what it has until then."""
    x = _small(draw)
    definitions = (
        "def {name}_turn(state):\n"
        "    count, flag, left, right = state\n"
        "    return count + 1, ~flag, jnp.where(flag, right, left - right), jnp.clip(left, -9, 9)"
    )
    text = (
        f"lax.while_loop(lambda s: s[0] < {draw.integer(0, 4)}, {{name}}_turn, "
        f"(np.int32(0), np.bool_({draw.chance(0.5)}), {x.name}, {x.name} * 2))"
    )
    values = Facts(16 * x.facts.bound + 144, min(1.0, x.facts.quantum), any_zero=True)
    return line(text, [x], Facts(4, 1), Facts(1, 1), values, values, definitions=definitions)


def custom_rule(draw: Draw) -> Line:
    """Derivatives that are not those of the function."""
    x = _small(draw)
    factor = draw.integer(-3, 3)
    if draw.chance(0.5):
        definitions = (
            "@jax.custom_vjp\ndef {name}_rule(c):\n    return c * c\n"
            "{name}_rule.defvjp(lambda c: (c * c, c), "
            f"lambda kept, given: (given * kept * {factor},))"
        )
    else:
        definitions = (
            "@jax.custom_jvp\ndef {name}_rule(c):\n    return c * c\n"
            "{name}_rule.defjvp(lambda given, moves: "
            f"({{name}}_rule(given[0]), moves[0] * given[0] * {factor}))"
        )
    wrapper = draw.choice(("{}", "jax.jit({})", "jax.checkpoint({})", "jax.vmap({})"))
    rule = wrapper.format("{name}_rule")
    text = f"jax.value_and_grad(lambda c: {rule}(c).sum())({x.name})"
    total = summed(replace(x.facts, bound=x.facts.bound**2, quantum=x.facts.quantum**2),
                   x.size, x.dtype)  # fmt: skip
    slope = Facts(3 * x.facts.bound, x.facts.quantum, any_zero=True)
    return line(text, [x], total, slope, definitions=definitions)


def recomputed(draw: Draw) -> Line:
    """Second derivatives of a loop that is computed again for the first ones."""
    x = _small(draw)
    if x.facts.bound > 8:
        raise Unsuitable
    definitions = (
        "@jax.checkpoint\ndef {name}_turn(c, _):\n    return c * 2 - 1, (c * c).sum()\n"
        "def {name}_sum(c):\n"
        f"    return lax.scan({{name}}_turn, c, None, length={draw.integer(1, 3)})[1].sum()"
    )
    text = draw.choice((
        f"jax.grad({{name}}_sum)({x.name})",
        f"jax.jvp(jax.grad({{name}}_sum), ({x.name},), (jnp.ones_like({x.name}),))[1]",
    ))  # fmt: skip
    facts = Facts(1e4, min(1.0, x.facts.quantum), any_zero=True)
    return line(text, [x], facts, definitions=definitions)


def complex_numbers(draw: Draw) -> Line:
    x = _small(draw)
    number = f"lax.complex({x.name}, jnp.flip({x.name}, 0))"
    square = Facts(2 * x.facts.bound**2, x.facts.quantum**2, any_zero=True)
    text, facts = draw.choice((
        ("jnp.real({0} * {0})", square), ("jnp.imag({0} * jnp.conj({0}))", square),
        ("jnp.real(jnp.flip({0}) - {0})", replace(square, bound=2 * x.facts.bound)),
        ("jnp.abs({0})", Facts(2 * x.facts.bound, 0, relative=8 * FP32, special=True)),
        ("jnp.imag(jnp.sum({0}, axis=0))", summed(x.facts, x.size, x.dtype)),
        ("jnp.real(jnp.where({0} == 1j, {0}, 0))", replace(square, bound=x.facts.bound)),
    ))  # fmt: skip
    return line(text.format(number), [x], facts)


def fourier(draw: Draw) -> Line:
    x = _small(draw)
    text = draw.choice((
        "jnp.real(jnp.fft.fft({}))", "jnp.imag(jnp.fft.rfft({}))", "jnp.abs(jnp.fft.fftn({}))",
        "jnp.real(jnp.fft.ifft({}, axis=0))", "jnp.fft.irfft(jnp.fft.rfft({}))",
        "jax.grad(lambda c: (jnp.abs(jnp.fft.fft(c)) ** 2).sum())({})",
    ))  # fmt: skip
    bound = 2 * x.size**2 * (x.facts.bound + 1)
    return line(text.format(x.name), [x], Facts(bound, 0, absolute=4 * FP32 * bound, special=True))


def factorised(draw: Draw) -> Line:
    """Of matrices near the identity, so that no error grows."""
    x = draw.value(exact, finite, _lattice, _float32, lambda v: len(v.shape) == 2 and v.size > 0)
    size = min(*x.shape, 6)
    near = f"(jnp.eye({size}) + {x.name}[:{size}, :{size}] * {0.25 / (size * (x.facts.bound + 1))})"
    text = draw.choice((
        "jnp.linalg.inv({})", "jnp.linalg.cholesky({0} @ {0}.T)", "jnp.linalg.det({})",
        "jnp.abs(jnp.linalg.qr({})[1])", "jnp.linalg.solve({0}, {0}[:, :1])",
        "jax.scipy.linalg.solve_triangular({0}, {0}, lower=True)", "jnp.linalg.slogdet({})[1]",
        "jnp.linalg.svd({}, compute_uv=False)", "jnp.linalg.eigvalsh({0} + {0}.T)",
        "jax.grad(lambda c: jnp.linalg.cholesky(c @ c.T).sum())({})",
        "jax.grad(lambda c: jnp.linalg.inv(c).sum())({})", "jax.scipy.linalg.expm({})",
    ))  # fmt: skip
    return line(text.format(near), [x], Facts(8.0 * size, 0, absolute=1e-4, special=True))


def collective(draw: Draw) -> Line:
    """Over cores that have rows each."""
    x = draw.value(ranked, exact, finite, _lattice, _float32)
    whole = f"jnp.resize({x.name}, ({_RANKS}, {_RANKS}, *{x.name}.shape[1:]))"
    text = draw.choice((
        "lax.psum(c, 'i')", "lax.pmax(c, 'i')", "lax.pmin(-c, 'i')", "lax.pmean(c, 'i')",
        "lax.all_gather(c, 'i', axis=0, tiled=True)[:1]", "lax.pswapaxes(c, 'i', 1)",
        "lax.psum_scatter(c, 'i', scatter_dimension=1, tiled=True)",
        "lax.ppermute(c, 'i', [(0, 1), (1, 2), (2, 0)])",
        "lax.all_to_all(c, 'i', 1, 1, tiled=True)",
        "c * lax.axis_index('i')", "lax.psum(c, 'i', axis_index_groups=[[0, 3], [1, 2]])",
        "lax.cond(lax.axis_index('i') > 1, lambda d: d * 2, lambda d: d - 1, c)",
        "lax.scan(lambda d, _: (lax.ppermute(d, 'i', [(k, (k + 1) % 4) for k in range(4)]), d), "
        "c, None, length=3)[1].sum(0)",
    ))  # fmt: skip
    definitions = (
        f"{{name}}_mesh = jax.sharding.Mesh(np.array(jax.devices()[:{_RANKS}]), 'i')\n"
        f"{{name}}_each = jax.shard_map(lambda c: {text}, mesh={{name}}_mesh, "
        "in_specs=jax.P('i'), out_specs=jax.P('i'), check_vma=False)"
    )
    facts = Facts(_RANKS * x.facts.bound + 1, min(1.0, x.facts.quantum) / _RANKS, any_zero=True)
    return line(f"{{name}}_each({whole})", [x], facts, definitions=definitions)


KINDS: Mapping[str, Kind] = {
    each.__name__: each
    for each in (
        tuple_scan, tuple_while, custom_rule, recomputed, complex_numbers, fourier, factorised,
        collective,
    )
}  # fmt: skip
