"""Verdicts on workloads: what is known to suit a machine, and what is known not to."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from neuronjax.planning.fit import Fit, Verdict, fit, text
from neuronjax.planning.record import Price
from neuronjax.planning.workload import Factory

TARGET = "trn2.3xlarge"
BF16 = jnp.bfloat16


def products(mesh: AbstractMesh, width: int, batch: int = 4) -> dict[str, Any]:
    """Two products of [batch, width] with weights split by `model`."""

    def array(shape: tuple[int, ...], *spec: str | None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, BF16, sharding=NamedSharding(mesh, PartitionSpec(*spec)))

    weights = {"up": array((width, width), None, "model"), "down": array((width, width), "model")}
    return {
        "fn": lambda weights, x: x @ weights["up"] @ weights["down"],
        "arguments": (weights, array((batch, width), "data")),
        "kinds": {"weights": "weights"},
        "samples": batch,
    }


def judged(function: Callable[..., Any], *arguments: jax.ShapeDtypeStruct) -> Fit:
    return fit(Factory(make=lambda: (function, *arguments), name="function"), TARGET)


def test_products_fit_well_and_are_split_in_every_way() -> None:
    factory = Factory(make=products, name="products", settings={"width": 4096})
    found = fit(factory, TARGET, batch=2048, price=Price(usd_per_hour=2.0))
    assert (found.verdict, found.limits) == (Verdict.WELL, ())
    assert [point.mesh for point in found.points] == [
        "data=4,model=1", "data=2,model=2", "data=1,model=4",
    ]  # fmt: skip
    assert [point.batch for point in found.points] == [8192, 4096, 2048]
    assert found.cheapest is not None
    assert found.cheapest.cost == min(point.cost for point in found.points)
    assert "$ per M samples" in text([found])


def test_lines_that_keep_a_step_far_from_its_roofline_are_named() -> None:
    def run(x: jax.Array) -> jax.Array:
        for _ in range(100):
            x = jnp.tanh(x)
        return x

    (limit,) = judged(run, jax.ShapeDtypeStruct((128, 512), BF16)).limits
    line = run.__code__.co_firstlineno + 2
    assert f"costliest lines: {os.path.relpath(__file__)}:{line} (" in limit.problem


def test_rows_are_those_of_a_replica_on_a_given_mesh() -> None:
    factory = Factory(make=products, name="products", settings={"width": 256})
    found = fit(factory, TARGET, meshes=["data=4,model=1", "data=2,model=2"], batch=3)
    assert [point.batch for point in found.points] == [12, 6]
    assert all(point.usable for point in found.points)


def test_ways_to_split_that_fail_are_left_out() -> None:
    """Three heads are split over one core only."""

    def heads(mesh: AbstractMesh, batch: int) -> Any:
        splits = mesh if mesh.shape["model"] == 1 else AbstractMesh((4,), ("data",))
        return products(splits, width=96, batch=batch)

    found = fit(Factory(make=heads, name="heads"), TARGET, batch=4)
    assert [point.mesh for point in found.points if point.usable] == ["data=4,model=1"]


def test_what_no_core_holds_alone_is_tried_in_larger_groups() -> None:
    """Two weights of 12.5 GiB: one core of 24 GiB does not hold them."""
    factory = Factory(make=products, name="products", settings={"width": 80 * 1024})
    found = fit(factory, TARGET, batch=1)
    assert [point.mesh for point in found.points] == ["data=2,model=2", "data=1,model=4"]
    assert found.verdict is not Verdict.NOT


def test_what_does_not_fit_a_machine_says_what_is_short() -> None:
    factory = Factory(make=products, name="products", settings={"width": 200 * 1024})
    found = fit(factory, TARGET, batch=1)
    assert found.verdict is Verdict.NOT
    assert found.cheapest is None
    (limit,) = found.limits
    assert "a core needs 41.07 GiB" in limit.problem
    assert "weights 39.06 GiB, dma rings 0.81 GiB" in limit.problem
    assert "24.00 GiB" in limit.problem
    assert "split the weights" in limit.remedy


def test_unpublished_chips_are_not_judged() -> None:
    factory = Factory(make=products, name="products", settings={"width": 128})
    found = fit(factory, "inf1.xlarge")
    assert found.verdict is Verdict.UNKNOWN
    assert "AWS publishes neither" in found.limits[0].problem


def branches(x: jax.Array, index: jax.Array) -> jax.Array:
    return lax.switch(index, [jnp.sin, jnp.cos], x)


def randoms(x: jax.Array) -> jax.Array:
    return x + jax.random.normal(jax.random.key(0), x.shape)


def sums_of_complex(x: jax.Array) -> jax.Array:
    return lax.reduce_window(x, np.complex64(0), lax.add, (2, 2), (1, 1), "SAME")


@pytest.mark.parametrize(
    ("function", "arguments", "verdict", "words"),
    [
        (branches, ((8, 8, "float32"), ("int32",)), Verdict.NOT, "[NCC_EVRF001]"),
        (randoms, ((8, 8, "float32"),), Verdict.LIMITED, "[JAX_THREEFRY]"),
        (sums_of_complex, ((8, 8, "complex64"),), Verdict.NOT, "the host computes"),
    ],
)
def test_what_the_compiler_says_is_a_limit_with_its_line(
    function: Callable[..., Any], arguments: tuple[Any, ...], verdict: Verdict, words: str
) -> None:
    found = judged(function, *(jax.ShapeDtypeStruct(shape, kind) for *shape, kind in arguments))
    assert found.verdict is verdict
    said = text([found])
    assert words in said
    if words.startswith("["):
        assert "test_fit.py:" in said
