"""Donated arguments: results take their memory, and updates copy nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.program.dma import DmaCopy
from neuronjax.program.program import Alias, Program
from neuronjax.program.verify import verify
from neuronjax.program.walk import instructions, kernels
from tests.lower.differential import (
    SUM,
    assert_close,
    emulated,
    host_operations,
    lowered,
    on_cpu,
    sent,
)

ROWS = np.random.default_rng(0).standard_normal((40, 16)).astype(np.float32)
CACHE = np.zeros((200, 16), np.float32)


def adam(w: Any, m: Any, v: Any, g: Any) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return w - 0.1 * m / (jnp.sqrt(v) + 1e-3), m, v


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]] = {
    "optimizer": (adam, (ROWS, ROWS * 2, ROWS * ROWS, ROWS / 3), (0, 1, 2)),
    "cache": (
        lambda c, x, i: (jax.lax.dynamic_update_slice(c, x, (i, 0)), (c[3] * x[0]).sum()),
        (CACHE, ROWS, np.array(5, np.int32)),
        (0,),
    ),
    "scattered cache": (
        lambda c, x, i: c.at[i].set(x),
        (CACHE, ROWS, np.arange(7, 47, dtype=np.int32)),
        (0,),
    ),
    "read later": (lambda x: (x + 1, x.sum() * 2), (ROWS,), (0,)),
    "read elsewhere": (lambda x: x + x[::-1], (ROWS,), (0,)),
    "exchanged": (lambda x, y: (y, x), (ROWS, ROWS * 2), (0, 1)),
    "exchanged and changed": (lambda x, y: (y + 1, x * y), (ROWS, ROWS * 2), (0, 1)),
    "turned": (lambda x: x.T @ x, (ROWS[:16],), (0,)),
    "as it is": (lambda x, y: (x, y + 1), (ROWS, ROWS), (0, 1)),
    "of no elements": (lambda x, y: (x + 1, y + 1), (ROWS[:0], ROWS), (0, 1)),
    "a loop": (
        lambda c, x: jax.lax.fori_loop(0, 5, lambda i, v: v.at[i].set(x[i] + i), c),
        (CACHE, ROWS),
        (0,),
    ),
}


def donated(name: str) -> Program:
    function, arguments, numbers = CASES[name]
    jitted = jax.jit(function, donate_argnums=numbers, keep_unused=True)
    code = sent(jitted.trace(*arguments))
    program = lowered(code)
    assert host_operations(program) == []
    arrays = [np.array(each) for each in arguments]
    (found,) = emulated(program, code, [arrays])
    plain = sent(jax.jit(function, keep_unused=True).trace(*arguments))
    for got, want in zip(found, on_cpu(plain, arrays), strict=True):
        assert_close(got, want, SUM)
    assert verify(program) == ()
    return program


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    donated(name)


def test_optimizer_in_place() -> None:
    """New parameters and moments lie where the old ones were, by no copy."""
    program = donated("optimizer")
    assert program.aliases == tuple(Alias(f"res{i}", f"arg{i}") for i in range(3))
    assert not [each for _, each in kernels(program) if each.name.startswith("copy")]


@pytest.mark.parametrize("name", ["cache", "scattered cache", "a loop"])
def test_updates_in_place(name: str) -> None:
    program = donated(name)
    assert program.aliases[0] == Alias("res0", "arg0")
    copies = [each for _, each in instructions(program) if isinstance(each, DmaCopy)]
    assert not [each for each in copies if each.dst.nbytes >= CACHE.nbytes]
