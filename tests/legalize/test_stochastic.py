"""Stochastic rounding of whole programs: unbiased, reproducible, different everywhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.legalize.chip import client, execute, lowered, run_text
from tests.runtime.conftest import compile_options

SIZE = 4096
EXECUTORS = ("host", "engine")
FRACTIONS = (0.25, 0.5, 0.8)
ULP = 2.0**-7
"""Of bf16 between 1 and 2."""


def runs(
    function: Callable[..., Any],
    *arguments: np.ndarray,
    count: int = 1,
    seed: int = 0,
    first: int = 0,
    executor: str = "host",
) -> list[np.ndarray]:
    """The first results of a program's first runs."""
    machine = client(
        NEURON_RT_STOCHASTIC_ROUNDING_EN="1",
        NEURON_RT_STOCHASTIC_ROUNDING_SEED=str(seed),
        NEURONJAX_FIRST_RUN=str(first),
        NEURONJAX_EXECUTOR=executor,
    )
    program = machine.compile(lowered(function, *arguments), compile_options())
    return [np.asarray(execute(machine, program, *arguments)[0], np.float64) for _ in range(count)]


def cast(x: jax.Array) -> jax.Array:
    return x.astype(jnp.bfloat16).astype(jnp.float32)


def between(fraction: float) -> np.ndarray:
    """Values `fraction` of an ULP above 1."""
    return np.full(SIZE, 1 + fraction * ULP, np.float32)


def assert_mean(value: np.ndarray, fraction: float) -> None:
    """Only the neighbours occur, the upper one as often as it should (five standard deviations)."""
    assert set(np.unique(value)) <= {1, 1 + ULP}
    deviation = np.sqrt(fraction * (1 - fraction) / value.size)
    assert abs((value == 1 + ULP).mean() - fraction) < 5 * deviation


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("fraction", FRACTIONS)
def test_unbiased(fraction: float, executor: str) -> None:
    assert_mean(runs(cast, between(fraction), executor=executor)[0], fraction)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_same_seed_same_values_and_runs_differ(executor: str) -> None:
    draw = partial(runs, cast, between(0.5), executor=executor)
    first, second = draw(count=2, seed=3)
    again, _ = draw(count=2, seed=3)
    other, _ = draw(count=2, seed=4)
    np.testing.assert_array_equal(first, again)
    (resumed,) = draw(seed=3, first=1)
    np.testing.assert_array_equal(second, resumed)
    for different in (second, other):
        assert_mean(different, 0.5)
        assert 0.4 < (first != different).mean() < 0.6


def in_loop(x: jax.Array) -> jax.Array:
    """Casts in the iterations of a loop, side by side."""
    return jax.lax.scan(lambda c, _: (c, cast(x + c)), jnp.float32(0), None, length=8)[1]


def in_nested_loops(x: jax.Array) -> jax.Array:
    def body(carry: Any, _: Any) -> Any:
        return carry, jax.lax.scan(lambda c, _: (c, cast(x)), 0, None, length=3)[1]

    return jax.lax.scan(body, 0, None, length=3)[1].reshape(9, -1)


def in_functions(x: jax.Array) -> jax.Array:
    once = jax.jit(cast)
    return jnp.stack([once(x), once(x), jax.jit(lambda y: once(y))(x), cast(x)])


def in_branches(x: jax.Array) -> jax.Array:
    def branch(y: jax.Array) -> jax.Array:
        return jnp.stack([cast(y), cast(y)])

    return jax.lax.cond(x[0] > 0, branch, lambda y: jnp.stack([y, y]), x)


def in_composite(x: jax.Array) -> jax.Array:
    once = jax.lax.composite(cast, "my.cast")
    return jnp.stack([once(x), once(x)])


def in_arithmetic(x: jax.Array) -> jax.Array:
    y = jnp.ones((3, SIZE), jnp.bfloat16)
    return (y * (x[0].astype(jnp.float32) - 1).astype(jnp.bfloat16) + y).astype(jnp.float32)


PLACES = {
    function.__name__: function
    for function in (in_loop, in_nested_loops, in_functions, in_branches, in_composite)
}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("place", PLACES)
def test_every_rounding_has_numbers_of_its_own(place: str, executor: str) -> None:
    rows = runs(PLACES[place], between(0.5), executor=executor)[0]
    for row in rows:
        assert_mean(row, 0.5)
    correlations = np.corrcoef(rows)[np.triu_indices(len(rows), 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(SIZE)


def test_arithmetic_rounds_stochastically() -> None:
    """In bf16, 1 + a quarter of an ULP is 1 to the nearest."""
    x = np.full(1, 1 + 0.25 * ULP, np.float32)
    assert_mean(runs(in_arithmetic, x)[0], 0.25)


@pytest.mark.parametrize(("seed", "low", "high"), [(0, 2008, 2088), (1, 2008, 2088)])
def test_small_steps_are_not_lost(seed: int, low: float, high: float) -> None:
    """1024 + 0.5 added 2048 times in fp16: 2048 within 2 % (Neuron docs, rounding modes)."""

    def add(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 2048, lambda i, y: y + jnp.float16(0.5), x)

    start = np.full(64, 1024, np.float16)
    machine = client()
    program = machine.compile(lowered(add, start), compile_options())
    assert (execute(machine, program, start)[0] == 1024).all()
    sums = runs(add, start, seed=seed)[0]
    assert low < sums.mean() < high
    assert len(np.unique(sums)) > 8


def test_replicas_stay_equal() -> None:
    """Every core draws the same numbers, so equal replicas of a weight stay equal."""
    text = """module @cast { func.func @main(%a: tensor<64xf32>) -> tensor<2x64xf32> {
      %b = stablehlo.convert %a : (tensor<64xf32>) -> tensor<64xbf16>
      %c = stablehlo.convert %b : (tensor<64xbf16>) -> tensor<64xf32>
      %d = stablehlo.reshape %c : (tensor<64xf32>) -> tensor<1x64xf32>
      %e = "stablehlo.all_gather"(%d) {all_gather_dim = 0 : i64,
        replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<1x64xf32>) -> tensor<2x64xf32>
      return %e : tensor<2x64xf32> } }"""
    both = run_text(text, between(0.5)[:64], cores=2, NEURON_RT_STOCHASTIC_ROUNDING_EN="1")
    np.testing.assert_array_equal(both[0], both[1])
    assert len(np.unique(both)) == 2
