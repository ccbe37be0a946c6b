"""Random numbers: bits are exact, what is made of them is a function of bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np

from tests.conformance.random_programs.draw import Draw, Line, Unsuitable, line
from tests.conformance.random_programs.elementwise import FP32
from tests.conformance.random_programs.facts import Facts

Kind = Callable[[Draw], Line]


def key(draw: Draw) -> str:
    text = f"jax.random.key({draw.integer(-3, 1000)})"
    if draw.chance(0.3):
        text = f"jax.random.fold_in({text}, {draw.integer(0, 99)})"
    if draw.chance(0.3):
        text = f"jax.random.split({text}, 3)[{draw.integer(0, 2)}]"
    return text


def bits(draw: Draw) -> Line:
    dtype = draw.choice(("uint32", "uint8", "uint16"))
    text = f"jax.random.bits({key(draw)}, {draw.shape(elements=300)}, '{dtype}')"
    return line(text, [], Facts(2.0 ** (8 * jnp.dtype(dtype).itemsize), 1))


def uniform(draw: Draw) -> Line:
    shape = draw.shape(elements=300)
    low, high = draw.choice(((0.0, 1.0), (-2.0, 2.0)))
    text = f"jax.random.uniform({key(draw)}, {shape}, 'float32', {low}, {high})"
    return line(text, [], Facts(2, 0))


def integers(draw: Draw) -> Line:
    low = draw.integer(-200, 5)
    high = low + draw.integer(1, 300)
    text = f"jax.random.randint({key(draw)}, {draw.shape(elements=300)}, {low}, {high})"
    return line(text, [], Facts(500, 1))


def normal(draw: Draw) -> Line:
    name = draw.choice((
        "jax.random.normal({}, {})", "jax.random.truncated_normal({}, -2.0, 2.0, {})",
        "jax.random.exponential({}, {})", "jax.random.gumbel({}, {})",
    ))  # fmt: skip
    facts = Facts(20, 0, relative=64 * FP32, absolute=64 * FP32)
    return line(name.format(key(draw), draw.shape(elements=300)), [], facts)


def choices(draw: Draw) -> Line:
    shape = draw.shape(elements=200)
    if not np.prod(shape):
        raise Unsuitable
    text = draw.choice((
        f"jax.random.bernoulli({key(draw)}, {draw.choice((0.0, 0.3, 1.0))}, {shape})",
        f"jax.random.permutation({key(draw)}, {draw.integer(1, 40)})",
        f"jax.random.rademacher({key(draw)}, {shape})",
    ))  # fmt: skip
    return line(text, [], Facts(40, 1))


KINDS: Mapping[str, Kind] = {
    f"random_{each.__name__}": each for each in (bits, uniform, integers, normal, choices)
}
