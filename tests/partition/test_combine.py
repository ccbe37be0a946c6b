"""All-reduces that can be one are one, as on JAX's cpu platform, whose values are the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from neuronjax.partition.combine import MOST_TENSORS

X = np.random.default_rng(0).standard_normal((8, 16), dtype=np.float32)


def two_layers(x: jax.Array) -> Any:
    """Sums of both axes that need each other: joined across, they would wait for each other."""
    first, second = lax.psum(x, "x"), lax.psum(x * 2, "y")
    return lax.psum(jnp.tanh(second), "x"), lax.psum(jnp.tanh(first), "y")


CASES: dict[str, tuple[Callable[[jax.Array], Any], int]] = {
    "independent": (lambda x: [lax.psum(x + n, "x") for n in range(5)], 1),
    "one after the other": (lambda x: lax.psum(jnp.tanh(lax.psum(x, "x")) * x, "x"), 2),
    "other cores": (lambda x: (lax.psum(x, "x"), lax.psum(x, "y"), lax.psum(x, ("x", "y"))), 3),
    "other reductions": (lambda x: (lax.psum(x, "x"), lax.pmax(x, "x"), lax.psum(x + 1, "x")), 2),
    "other types": (
        lambda x: [lax.psum(v, "x") for v in (x, x.astype(jnp.int32), x + 1)],
        2,
    ),
    "other layouts": (lambda x: [lax.psum(v @ v.T, "x").T for v in (x, x * 2)], 1),
    "used in between": (lambda x: (jnp.sin(lax.psum(x, "x")) * 2, lax.psum(x * x, "x")), 1),
    "crossing": (two_layers, 3),
    "too many": (lambda x: [lax.psum(x[0, 0] + n, "x") for n in range(MOST_TENSORS + 1)], 2),
}


def compiled(function: Callable[..., Any], devices: Sequence[jax.Device]) -> Any:
    mesh = Mesh(np.array(devices[:8]).reshape(4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=P("x", "y"), out_specs=P("x", "y"), check_vma=False
    )
    return jax.jit(mapped).lower(jax.ShapeDtypeStruct(X.shape, X.dtype)).compile()


def widened(function: Callable[..., Any]) -> Callable[..., Any]:
    """With results of two axes."""
    return lambda x: jax.tree.map(lambda v: jnp.atleast_2d(v), function(x))


@pytest.mark.parametrize("name", CASES)
def test_as_many_as_can_be(
    name: str, neuron_devices: list[jax.Device], cpu_devices: list[jax.Device]
) -> None:
    function, count = CASES[name]
    ours, theirs = (compiled(widened(function), d) for d in (neuron_devices, cpu_devices))
    assert [p.as_text().count(" all-reduce(") for p in (ours, theirs)] == [count, count]
    assert_equal(ours(X), theirs(X))


def sums(mesh: Mesh) -> Callable[[jax.Array], Any]:
    """Of two bodies of ``shard_map``."""

    def summed(prepare: Callable[[jax.Array], jax.Array]) -> Any:
        return jax.shard_map(
            lambda x: lax.psum(prepare(x), ("x", "y")),
            mesh=mesh,
            in_specs=P("x", "y"),
            out_specs=P(),
        )

    return lambda x: (summed(jnp.sin)(x), summed(jnp.cos)(x))


def nested(mesh: Mesh) -> Callable[[jax.Array], Any]:
    """One body within the other."""

    @partial(jax.shard_map, mesh=mesh, in_specs=P("x"), out_specs=P(), axis_names={"x"})
    def outer(x: jax.Array) -> jax.Array:
        inner = jax.shard_map(
            lambda x: lax.psum(jnp.sin(x), "y"),
            in_specs=P(None, "y"),
            out_specs=P(),
            axis_names={"y"},
        )
        return lax.psum(inner(x), "x")

    return outer


def looped(mesh: Mesh) -> Callable[[jax.Array], Any]:
    """Bodies that a loop calls again and again."""
    both = sums(mesh)

    def body(_: jax.Array, x: jax.Array) -> jax.Array:
        return x + jnp.tile(sum(both(x)), (4, 2))

    return lambda x: lax.fori_loop(0, 3, body, x)


@pytest.mark.parametrize("program", [sums, nested, looped], ids=lambda program: program.__name__)
def test_across_bodies_of_shard_map(
    program: Callable[[Mesh], Callable[[jax.Array], Any]],
    neuron_devices: list[jax.Device],
    cpu_devices: list[jax.Device],
) -> None:
    def run(devices: Sequence[jax.Device]) -> tuple[int, jax.Array]:
        mesh = Mesh(
            np.array(devices[:8]).reshape(4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2
        )
        x = jax.device_put(X, NamedSharding(mesh, P("x", "y")))
        function = jax.jit(program(mesh)).lower(x).compile()
        return function.as_text().count(" all-reduce("), function(x)

    ours, theirs = run(neuron_devices), run(cpu_devices)
    assert ours[0] == theirs[0]
    assert_equal(ours[1], theirs[1])


def drawn(seed: int, x: jax.Array) -> list[jax.Array]:
    """Sums over either axis of values that need each other at random."""
    generator = np.random.default_rng(seed)
    values = [x, jnp.cos(x)]
    for _ in range(14):
        a, b = (values[n] for n in generator.integers(0, len(values), 2))
        axis = ("x", "y", None)[generator.integers(3)]
        values.append(jnp.tanh(a * 0.5 - b) if axis is None else 0.25 * lax.psum(a, axis))
    return values


def test_narrow_types_are_added_as_wide_ones(
    neuron_devices: list[jax.Device], cpu_devices: list[jax.Device]
) -> None:
    def sums(x: jax.Array) -> Any:
        return [lax.psum((x * n).astype(jnp.bfloat16), "x") for n in range(1, 4)]

    assert_equal(*(compiled(sums, devices)(X) for devices in (neuron_devices, cpu_devices)))


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_needs(
    seed: int, neuron_devices: list[jax.Device], cpu_devices: list[jax.Device]
) -> None:
    ours, theirs = (compiled(partial(drawn, seed), d)(X) for d in (neuron_devices, cpu_devices))
    assert_equal(ours, theirs)


def assert_equal(ours: Any, theirs: Any) -> None:
    for found, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
