"""Programs of every kind that once failed, or might fail, with default settings alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import checkify, io_callback

from tests.defaults.case import Case

X = np.linspace(-2.0, 3.0, 12, dtype=np.float32).reshape(3, 4)
BF16 = 2.0**-8


def printing(x: jax.Array) -> jax.Array:
    jax.debug.print("hello")
    jax.debug.print("{}", x.sum(), ordered=True)
    return x + 1


def calling(x: jax.Array) -> Any:
    jax.debug.callback(lambda: None)
    io_callback(lambda: None, None, ordered=True)
    io_callback(lambda: None, None)
    jax.pure_callback(lambda: None, None)
    two = jax.pure_callback(lambda: np.float32(2), jax.ShapeDtypeStruct((), np.float32))
    same = jax.pure_callback(lambda y: y, x, x)
    return two, same


@partial(lax.composite, name="tests.nothing")
def composite_of_nothing() -> jax.Array:
    return jnp.ones(3)


@partial(lax.composite, name="tests.pair")
def composite_of_pair(x: jax.Array, *, factor: float) -> tuple[jax.Array, jax.Array]:
    return x * factor, x + 1


@jax.custom_vjp
def clipped(x: jax.Array) -> jax.Array:
    return x


clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1, 1),))


def constant_convolution() -> jax.Array:
    image = np.arange(-30, 30, dtype=np.float16).reshape(1, 1, 60, 1)
    filters = np.array([4, 2, 2, -2, 5, -6, 1, 3], np.float16).reshape(2, 1, 2, 2)
    return lax.conv_general_dilated(
        jnp.asarray(image), jnp.asarray(filters), (1, 1), [(2, -1), (1, 1)],
        dimension_numbers=("NCWH", "WIHO", "NWCH"),
    )  # fmt: skip


def checked(x: jax.Array) -> Any:
    error, value = checkify.checkify(
        lambda y: y / y.sum(), errors=checkify.float_checks | checkify.index_checks
    )(x)
    return error.get() is None, value


def effects_in_loops(x: jax.Array) -> jax.Array:
    def body(i: jax.Array, y: jax.Array) -> jax.Array:
        jax.debug.callback(lambda j: None, i, ordered=True)
        return lax.cond(i > 1, lambda z: z + 1, lambda z: z * 2, y)

    return lax.fori_loop(0, 3, body, x)


ON_X = {
    "debug.print": printing,
    "callbacks": calling,
    "composite without arguments": lambda x: composite_of_nothing(),
    "composite of two results": lambda x: composite_of_pair(x, factor=2.0),
    "effects in loops": effects_in_loops,
    "custom gradient": jax.grad(lambda x: (clipped(x) ** 3).sum()),
    "rematerialised": jax.grad(lambda x: jax.checkpoint(lambda y: (y * y).sum())(x)),
    "switch": lambda x: lax.switch(jnp.int32(1), [jnp.negative, jnp.abs, jnp.sign], x),
    "nothing": lambda x: (),
    "empty arrays": lambda x: (x[:0].sum(0), x[:0] @ x.T, jnp.sort(x[:, :0]), jnp.cumsum(x[:0])),
    "scalars": lambda x: (x[0, 0], jnp.argmax(x), lax.top_k(x[0], 0)),
    "booleans": lambda x: (jnp.any(x > 1), jnp.all(x > 1, 0), (x > 1).sum(), jnp.sort(x > 1)),
    "top_k of integers": lambda x: lax.top_k(x.astype(jnp.int32), 2),
    "int4": lambda x: x.astype(jnp.int4) @ x.T.astype(jnp.int4),
    "uint4": lambda x: abs(x).astype(jnp.uint4) + jnp.uint4(3),
    "int8": lambda x: x.astype(jnp.int8) * jnp.int8(100),
    "uint32": lambda x: (abs(x).astype(jnp.uint32) << 30) * 5,
    "complex": lambda x: jnp.fft.fft(x).imag * 0,
    "sort of several": lambda x: lax.sort((x, -x), num_keys=2),
    "reduce_precision": lambda x: lax.reduce_precision(x, 5, 2),
    "random bits": lambda x: jax.random.bits(jax.random.key(3), (4,)),
    "rbg": lambda x: jax.random.bits(jax.random.key(3, impl="rbg"), (4,)),
    "random order": lambda x: jax.random.permutation(jax.random.key(3), x),
    "bits": lambda x: lax.bitcast_convert_type(x, jnp.int32),
    "associative_scan": lambda x: lax.associative_scan(jnp.maximum, x),
    "expand and clz": lambda x: lax.clz(lax.population_count(x.astype(jnp.int32))),
    "float8": lambda x: x.astype(jnp.float8_e4m3).astype(jnp.float32),
    "float4": lambda x: x.astype(jnp.float4_e2m1fn).astype(jnp.float32),
}

CASES = {
    **{name: Case(lambda f=f: jax.jit(f)(X)) for name, f in ON_X.items()},
    "checkify": Case(lambda: checked(jnp.asarray(X))),
    "debug.print of nothing": Case(
        lambda: jax.jit(lambda x: (jax.debug.print("hello"), x + 1)[1])(1.0)
    ),
    "matmul in bfloat16": Case(
        lambda: jax.jit(jnp.matmul)(*[jnp.asarray(a, jnp.bfloat16) for a in (X, X.T)]).astype(
            jnp.float32
        ),
        tolerance=BF16,
    ),
    "convolution of constants": Case(lambda: jax.jit(constant_convolution)()),
    "softmax": Case(lambda: jax.jit(jax.nn.softmax)(X), tolerance=2.0**-22),
}
