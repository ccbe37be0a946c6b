"""Kernels in a faster order: the very bytes of the order in which they were written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.compiler import lower_program
from neuronjax.emulate.core import DataflowOrder, Order
from neuronjax.lower.allocate import allocate
from neuronjax.lower.join import join
from neuronjax.lower.split import split
from neuronjax.lower.synchronise import synchronise
from neuronjax.program.program import Target
from neuronjax.program.text import format, parse
from neuronjax.program.verify import verify
from tests.lower.differential import CHIP, emulated, lowered

RNG = np.random.default_rng(0)
ORDERS: tuple[Order | None, ...] = (None, DataflowOrder(0), DataflowOrder(0, adversarial=True))


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def _attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.softmax(0.125 * q @ k.swapaxes(-1, -2)) @ v


def _layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5) * scale + bias


def _mlp(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.gelu(x @ w) @ v


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "attention": (_attention, tuple(normal(6, 128, 64) for _ in range(3))),
    "layer norm": (_layer_norm, (normal(1024, 256), normal(256), normal(256))),
    "mlp": (_mlp, (normal(256, 256), normal(256, 512), normal(512, 128))),
    "softmax": (jax.nn.softmax, (normal(1024, 300),)),
    "gather": (lambda t, i: t[i], (normal(1000, 64), RNG.integers(0, 1000, 700).astype(np.int32))),
    "scatter": (
        lambda t, i, u: t.at[i].add(u),
        (normal(300, 64), RNG.integers(0, 300, 500).astype(np.int32), normal(500, 64)),
    ),
    "scan": (
        lambda w, x: jax.lax.scan(lambda c, a: (jnp.tanh(c @ a), c.sum(-1)), x, w),
        (normal(3, 128, 128) / 16, normal(128, 128)),
    ),
    "donated": (lambda x, y: (x + y, x * y), (normal(512, 256), normal(512, 256))),
}  # fmt: skip
"""Functions, and arguments."""


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_values_stay_the_same(name: str, lnc: int) -> None:
    """In any order of execution, without a race."""
    function, arguments = CASES[name]
    donated = 0 if name == "donated" else None
    code = jax.jit(function, donate_argnums=donated).lower(*arguments).as_text().encode()
    program = lower_program(code, Target(CHIP, lnc), 1)
    assert verify(program) == ()
    assert parse(format(program)) == program
    plain = synchronise(allocate(join(split(lowered(code)))))
    (wanted,) = emulated(plain, code, [arguments])
    for order in ORDERS:
        (found,) = emulated(program, code, [arguments], order=order)
        assert [each.tobytes() for each in found] == [each.tobytes() for each in wanted], order
