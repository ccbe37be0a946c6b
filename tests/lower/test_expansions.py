"""Operations in terms of others, random bits, and functions of CHLO, against XLA:CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from neuronjax.program.verify import verify
from tests.lower.differential import EXACT, FUNCTION, SUM, Tolerance, check

RNG = np.random.default_rng(0)
FLOATS = RNG.standard_normal((5, 8)).astype(np.float32)
EDGES = np.array(
    [0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 6e-8, -6.1e-5, 65504, 65519, 65520, 1e38, 3.4e38,
     1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-11],
    np.float32,
)  # fmt: skip
WORDS = RNG.integers(0, 2**32, (4, 6), dtype=np.uint32)
UNITS = np.linspace(-0.99, 0.99, 40, dtype=np.float32)


def _generator(algorithm: Any, shape: tuple[int, ...], dtype: Any, words: int = 4) -> Any:
    def bits(seed: jax.Array) -> Any:
        key = jnp.concatenate([seed[:1, :4].reshape(-1), seed[1, : words - 4]])
        return lax.rng_bit_generator(key, shape, dtype, algorithm)

    return bits


def _fours(x: jax.Array) -> Any:
    one, other = (x * 5).astype(jnp.int4), (x[::-1] * 3).astype(jnp.int4)
    return (one * other).astype(np.int32), (one + other).astype(np.float32), one < other


THREE_FRY, PHILOX = (
    lax.RandomAlgorithm.RNG_THREE_FRY, lax.RandomAlgorithm.RNG_PHILOX,
)  # fmt: skip
DEFAULT = lax.RandomAlgorithm.RNG_DEFAULT
BIG = Tolerance(ulps=8, relative=2e-6)

CASES: dict[str, tuple[Callable[..., Any], np.ndarray, Tolerance]] = {
    **{
        f"precision {e} {m}": (
            lambda x, e=e, m=m: lax.reduce_precision(x, e, m), EDGES, EXACT,
        )
        for e, m in ((5, 10), (8, 7), (4, 3), (8, 23), (5, 23), (2, 1))
    },
    "precision of half": (
        lambda x: lax.reduce_precision(x.astype(np.float16), 4, 5), EDGES, EXACT,
    ),
    "to narrower": (lambda x: lax.bitcast_convert_type(x, np.uint8), FLOATS, EXACT),
    "to half": (lambda x: lax.bitcast_convert_type(x, jnp.bfloat16), WORDS, EXACT),
    "to wider": (
        lambda x: lax.bitcast_convert_type(x.astype(np.int16).reshape(4, 3, 2), np.float32),
        WORDS, EXACT,
    ),
    "four bits": (_fours, FLOATS, EXACT),
    "threefry": (_generator(THREE_FRY, (3, 10), np.uint32), WORDS, EXACT),
    "threefry odd": (_generator(THREE_FRY, (3, 5, 7), np.uint32), WORDS, EXACT),
    "threefry bytes": (_generator(THREE_FRY, (9,), np.uint8), WORDS, EXACT),
    "philox": (_generator(PHILOX, (3, 10), np.uint32), WORDS, EXACT),
    "default": (_generator(DEFAULT, (33,), np.uint32), WORDS, EXACT),
    "default half": (_generator(DEFAULT, (4, 4), np.uint16), WORDS, EXACT),
    "uniform": (
        lambda x: jax.random.uniform(jax.random.wrap_key_data(x[0, :2]), (50,)), WORDS, EXACT,
    ),
    "normal": (
        lambda x: jax.random.normal(jax.random.wrap_key_data(x[0, :2]), (50,)), WORDS, BIG,
    ),
    "acos": (jnp.arccos, UNITS, BIG),
    "acosh": (lambda x: jnp.arccosh(x + 2), UNITS, BIG),
    "asin": (jnp.arcsin, UNITS, BIG),
    "asinh": (jnp.arcsinh, FLOATS, BIG),
    "atan": (jnp.arctan, FLOATS, BIG),
    "atanh": (jnp.arctanh, UNITS, BIG),
    "cosh": (jnp.cosh, FLOATS, BIG),
    "sinh": (jnp.sinh, FLOATS, BIG),
    "tan": (jnp.tan, UNITS, BIG),
    "erf": (lax.erf, FLOATS, FUNCTION),
    "erfc": (lax.erfc, FLOATS, BIG),
    "erf_inv": (lax.erf_inv, UNITS, BIG),
    "lgamma": (lambda x: lax.lgamma(x + 4), FLOATS, BIG),
    "digamma": (lambda x: lax.digamma(x + 4), FLOATS, BIG),
    "bessel": (lax.bessel_i1e, FLOATS, BIG),
    "next after": (lambda x: jnp.nextafter(x, -x), FLOATS, EXACT),
    "polygamma": (lambda x: jax.scipy.special.polygamma(1, jnp.abs(x) + 1), FLOATS, SUM),
    "square": (jnp.square, FLOATS, EXACT),
    "a composite": (jax.lax.composite(lambda x: jnp.sin(x) + 1, "my.function"), FLOATS, BIG),
    "upper halves": (
        lambda x: lax.mulhi(x.astype(np.uint32), x.astype(np.uint32) * 977), WORDS, EXACT,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_expansion(name: str) -> None:
    function, argument, tolerance = CASES[name]
    program = check(function, argument, tolerance=tolerance)
    assert verify(program) == ()
