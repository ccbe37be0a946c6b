"""Programs of FP64, which the chip does not have: every number is that of `cpu`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.ode import odeint

from tests.defaults.case import Case

KEY = np.array([7, 11], np.uint32)
X = np.array([3.5, -1.25, 0.0, -0.0, 1e-310, -7e200, np.inf, -np.inf, np.nan, 2.0**-40, 1e18 + 3])
Y = np.array([-2.0, 4.0, 1.0, -1.0, 2e-310, 7e200, 1.0, -1.0, 1.0, -(2.0**50), 0.1])
EXPONENTS = np.array([0, 1, -1, 5, 1023, -1074, 70, -70, 3, 40, -60])
A = np.random.default_rng(0).normal(size=(6, 6))
V = np.random.default_rng(1).normal(size=64)
LARGE = np.array([2**53 + 1, -(2**60), 2**62 + 5, 3])


def key() -> jax.Array:
    return jax.random.wrap_key_data(jnp.asarray(KEY))


RANDOM = {
    "uniform": lambda k: jax.random.uniform(k, (4,)),
    "normal": lambda k: jax.random.normal(k, (4,)),
    "truncated_normal": lambda k: jax.random.truncated_normal(k, -2.0, 2.0, (4,)),
    "gamma": lambda k: jax.random.gamma(k, 2.5, (4,)),
    "bernoulli": lambda k: jax.random.bernoulli(k, 0.3, (16,)),
    "categorical": lambda k: jax.random.categorical(k, jnp.log(jnp.arange(1.0, 5.0)), shape=(8,)),
    "poisson": lambda k: jax.random.poisson(k, 4.0, (8,)),
    "permutation": lambda k: jax.random.permutation(k, jnp.arange(9.0)),
    "split": lambda k: jax.random.uniform(jax.random.split(k, 3)[1], (4,)),
    "fold_in": lambda k: jax.random.uniform(jax.random.fold_in(k, 9), (4,)),
}

MATH = {
    "nextafter": lambda x, y: jnp.nextafter(x, y),
    "nextafter of one": lambda x, y: jnp.nextafter(1.0, 2.0) - 1.0,
    "frexp": lambda x, y: jnp.frexp(x),
    "ldexp": lambda x, y: jnp.ldexp(y, EXPONENTS),
    "signbit": lambda x, y: jnp.signbit(x),
    "copysign": lambda x, y: jnp.copysign(x, y),
    "sign": lambda x, y: jnp.sign(x),
    "spacing": lambda x, y: jnp.spacing(y),
    "modf": lambda x, y: jnp.modf(y),
    "fmod": lambda x, y: jnp.fmod(y, 0.7),
    "floor_divide": lambda x, y: y // 0.7,
    "rint": lambda x, y: jnp.rint(y * 10),
    "round": lambda x, y: lax.round(y * 10),
    "exp2": lambda x, y: jnp.exp2(EXPONENTS.astype(float)),
    "power": lambda x, y: y ** jnp.asarray(EXPONENTS),
    "integer_pow": lambda x, y: y**5,
    "bits": lambda x, y: lax.bitcast_convert_type(
        lax.bitcast_convert_type(y, jnp.uint64) & jnp.uint64(0xFFFFFFFFFFFF0000), jnp.float64
    ),
    "bits of the mantissa": lambda x, y: lax.bitcast_convert_type(y, jnp.int64) & ((1 << 52) - 1),
    "halves": lambda x, y: lax.bitcast_convert_type(
        lax.bitcast_convert_type(y, jnp.uint32)[:, ::-1], jnp.float64
    ),
    "leading zeros of bits": lambda x, y: lax.clz(lax.bitcast_convert_type(y, jnp.uint64)),
    "from integers": lambda x, y: jnp.asarray(LARGE).astype(float),
    "to integers": lambda x, y: (y[:5] * 1e12).astype(int),
    "integers in between": lambda x, y: (jnp.asarray(LARGE) * 3 + 1) / 7.0,
    "random bits as numbers": lambda x, y: jax.random.bits(key(), (4,), "uint64") / 2.0**64,
    "sort": lambda x, y: jnp.sort(x),
    "argsort": lambda x, y: jnp.argsort(x),
    "sort with bits": lambda x, y: lax.sort(
        (lax.bitcast_convert_type(y, jnp.int64), y), num_keys=1
    ),
    "top_k": lambda x, y: lax.top_k(y, 3),
    "median": lambda x, y: (jnp.median(y), jnp.quantile(y, 0.3)),
    "argmax": lambda x, y: (jnp.argmax(y), jnp.argmin(y)),
    "max of bits": lambda x, y: lax.bitcast_convert_type(y, jnp.int64).max(),
}

LARGER = {
    "sum": lambda: (V.sum(), jnp.sum(V), jnp.prod(V), jnp.mean(V), jnp.var(V)),
    "cumsum": lambda: (jnp.cumsum(V), jnp.cumprod(V), lax.cummax(V)),
    "histogram": lambda: jnp.histogram(V, 5),
    "fft": lambda: jnp.fft.fft(V),
    "solve": lambda: jnp.linalg.solve(A, V[:6]),
    "expm": lambda: jax.scipy.linalg.expm(A),
    "odeint": lambda: odeint(lambda y, t: -y + jnp.sin(t), 1.0, jnp.linspace(0.0, 5.0, 9)),
    "gradient of random": lambda: jax.grad(
        lambda s: jnp.sum(s * jax.random.normal(key(), (8,)) ** 2)
    )(1.5),
    "newton": lambda: lax.while_loop(
        lambda c: c[1] < 30, lambda c: (0.5 * (c[0] + 2.0 / c[0]), c[1] + 1), (1.0, 0)
    ),
    "loop of bits": lambda: lax.fori_loop(
        0, 20, lambda i, b: b + (jnp.int64(1) << (30 + i)), lax.bitcast_convert_type(1.0, jnp.int64)
    ),
    "counter as number": lambda: lax.fori_loop(0, 9, lambda i, s: s + 1.0 / (i + 1), 0.0),
    "scan": lambda: lax.scan(lambda c, v: (c + v, jnp.frexp(c)), 0.0, V[:9]),
    "branches": lambda: lax.cond(
        jnp.asarray(V)[0] > 0,
        lambda b: lax.bitcast_convert_type(b + 1, jnp.float64),
        lambda b: lax.bitcast_convert_type(b - 1, jnp.float64),
        lax.bitcast_convert_type(jnp.float64(1.5), jnp.int64),
    ),
    "called twice": lambda: _through_calls(jnp.asarray(V[:4])),
    "map over keys": lambda: jax.vmap(lambda k: jax.random.uniform(k, (2,)))(
        jax.random.split(key(), 3)
    ),
}


@jax.jit
def _next(bits: jax.Array) -> jax.Array:
    return bits + jnp.int64(3)


def _through_calls(x: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(_next(_next(lax.bitcast_convert_type(x, jnp.int64))), x.dtype)


EAGER = ("copysign", "frexp", "ldexp", "nextafter")

CASES = {
    **{f"random {name}": Case(lambda f=f: jax.jit(f)(key())) for name, f in RANDOM.items()},
    **{name: Case(lambda f=f: jax.jit(f)(X, Y)) for name, f in MATH.items()},
    **{
        f"eager {name}": Case(lambda f=f: f(X, Y))
        for name, f in MATH.items()
        if name in ("frexp", "nextafter", "ldexp", "copysign")
    },
    **{name: Case(jax.jit(f)) for name, f in LARGER.items()},
}
