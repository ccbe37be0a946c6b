"""Kernels in a faster order: the very bytes of the order in which they were written."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from neuronjax.emulate.core import DataflowOrder, Order
from neuronjax.engine_compiler import lower_program
from neuronjax.lower.cores.split import split
from neuronjax.lower.join.join import join
from neuronjax.lower.memory.allocate import allocate
from neuronjax.lower.prices import Move, Price
from neuronjax.lower.schedule.interleave import interleaved
from neuronjax.lower.sync.synchronise import synchronise
from neuronjax.program.dma import DmaInstruction
from neuronjax.program.instruction import Instruction
from neuronjax.program.program import Kernel, Program, Target
from neuronjax.program.text import format, parse
from neuronjax.program.verify import verify
from tests.lower.differential import CHIP, emulated, lowered, sent
from tests.lower.nests import programs
from tests.lower.unrolled import results

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
    "a prime number of tiles": (lambda x: (x.max(-1), x.min(-1)), (normal(23 * 128, 256),)),
    "donated": (lambda x, y: (x + y, x * y), (normal(512, 256), normal(512, 256))),
}  # fmt: skip
"""Functions, and arguments."""


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_values_stay_the_same(name: str, lnc: int) -> None:
    """In any order of execution, without a race."""
    function, arguments = CASES[name]
    donated = 0 if name == "donated" else None
    code = sent(jax.jit(function, donate_argnums=donated).trace(*arguments))
    program = lower_program(code, Target(CHIP, lnc), 1)
    assert verify(program) == ()
    assert parse(format(program)) == program
    plain = synchronise(allocate(join(split(lowered(code)))))
    (wanted,) = emulated(plain, code, [arguments])
    for order in ORDERS:
        (found,) = emulated(program, code, [arguments], order=order)
        assert [each.tobytes() for each in found] == [each.tobytes() for each in wanted], order


# Random kernels


class _Eager:
    """Prices with long waits for results, for which everything new is faster."""

    wake_ns = 30.0
    tables_ns = 300.0

    def __init__(self) -> None:
        self.times = itertools.count(10**9, -(10**8))

    def of(self, instruction: Instruction) -> Price:
        if isinstance(instruction, DmaInstruction):
            return Price(50.0, 0.0, 0.0, None, Move(100.0, 400.0, 600.0, 800.0, 300.0, 0.0))
        return Price(100.0, 500.0, 0.0, None, None)

    def time(self, kernel: Kernel) -> float:
        return float(next(self.times))


@pytest.mark.parametrize("examples", [150, pytest.param(600, marks=pytest.mark.slow)])
def test_random_kernels_leave_the_same_in_hbm(examples: int) -> None:
    """Bytes of a tile that nothing has written are 0 everywhere."""
    changed: list[bool] = []

    @given(programs(addressed=False))
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    def check(program: Program) -> None:
        found = interleaved(program, _Eager())
        changed.append(found != program)
        assert results(found) == results(program)

    check()
    assert any(changed)
