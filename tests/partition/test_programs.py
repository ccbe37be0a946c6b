"""Partitioned programs on eight cores give the very bits that JAX's cpu platform gives.

Both use XLA's partitioner and XLA's code generator, so nothing may differ, neither values nor
shardings of results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


@dataclass(frozen=True)
class Program:
    """A function of arrays, built for a mesh, with the specs its arguments are sharded by."""

    build: Callable[[Mesh], Callable[..., Any]]
    shapes: tuple[tuple[int, ...], ...]
    specs: tuple[P, ...]
    mesh: tuple[int, ...] = (2, 4)
    explicit: bool = False
    order: tuple[int, ...] = tuple(range(8))
    donated: tuple[int, ...] = ()


def run(program: Program, devices: list[jax.Device]) -> list[jax.Array]:
    names = ("x", "y")[: len(program.mesh)]
    kind = AxisType.Explicit if program.explicit else AxisType.Auto
    grid = np.array(devices, dtype=object)[list(program.order)].reshape(program.mesh)
    mesh = Mesh(grid, names, axis_types=(kind,) * len(names))
    generator = np.random.default_rng(0)
    with jax.set_mesh(mesh):
        arguments = [
            jax.device_put(
                generator.standard_normal(shape, dtype=np.float32), NamedSharding(mesh, spec)
            )
            for shape, spec in zip(program.shapes, program.specs, strict=True)
        ]
        return jax.tree.leaves(
            jax.jit(program.build(mesh), donate_argnums=program.donated)(*arguments)
        )


def constrained(*specs: P) -> Callable[[Any], Any]:
    return lambda value: lax.with_sharding_constraint(value, *specs)


def loss(w1: Any, w2: Any, x: Any) -> Any:
    return jnp.mean(jnp.square(jnp.tanh(x @ w1) @ w2))


def training_step(mesh: Mesh) -> Callable[..., Any]:
    def step(w1: Any, w2: Any, x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(w1, w2, x)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, (w1, w2), gradients)

    return step


def sequence_parallel(mesh: Mesh) -> Callable[..., Any]:
    def attention(q: Any, k: Any, v: Any) -> Any:
        weights = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k), axis=-1)
        return constrained(P(None, "y"))(jnp.einsum("bqk,bkd->bqd", weights, v))

    return attention


def experts(mesh: Mesh) -> Callable[..., Any]:
    """Tokens travel to their expert and back."""

    @partial(jax.shard_map, mesh=mesh, in_specs=(P("y"), P("y")), out_specs=P("y"))
    def route(tokens: Any, weights: Any) -> Any:
        sent = lax.all_to_all(tokens.reshape(4, -1, 8), "y", 0, 0)
        worked = jax.nn.relu(jnp.einsum("gtd,edf->gtf", sent, weights))
        return lax.all_to_all(worked, "y", 0, 0).reshape(tokens.shape)

    return route


def loop(mesh: Mesh) -> Callable[..., Any]:
    def scan(w: Any, x: Any) -> Any:
        def body(carry: Any, row: Any) -> Any:
            carry = jnp.tanh(carry @ w + row)
            return carry, carry.sum()

        return lax.scan(body, x[0], x)

    return scan


def while_and_cond(mesh: Mesh) -> Callable[..., Any]:
    def run(x: Any) -> Any:
        grown = lax.while_loop(lambda v: jnp.sum(v * v) < 1e4, lambda v: v * 1.5, x)
        return lax.cond(grown[0, 0] > 0, lambda v: v.sum(0), lambda v: v.max(0), grown)

    return run


def gather_scatter(mesh: Mesh) -> Callable[..., Any]:
    def run(table: Any, keys: Any) -> Any:
        index = (jnp.abs(keys) * 100).astype(jnp.int32) % table.shape[0]
        rows = table[index]
        return rows, jnp.zeros_like(table).at[index].add(rows), jnp.take(table, index[0], axis=1)

    return run


def convolution(mesh: Mesh) -> Callable[..., Any]:
    def run(image: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(
            image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    return run


def explicit_axes(mesh: Mesh) -> Callable[..., Any]:
    def run(x: Any, w: Any) -> Any:
        return jax.sharding.reshard(jnp.dot(x, w, out_sharding=P("x", None)), P(None, "y")) + 1

    return run


def mapped(body: Callable[[Any], Any], spec: P, out: P) -> Callable[[Mesh], Callable[..., Any]]:
    return lambda mesh: jax.shard_map(
        body, mesh=mesh, in_specs=spec, out_specs=out, check_vma=False
    )


def plain(function: Callable[..., Any]) -> Callable[[Mesh], Callable[..., Any]]:
    return lambda mesh: function


SQUARE = ((16, 16),)
ON_BOTH = (P("x", "y"),)
RING = [(i, (i + 1) % 4) for i in range(4)]

MAPPED: dict[str, Program] = {
    "psum": Program(mapped(lambda v: lax.psum(v, "y"), P("x", "y"), P("x")), SQUARE, ON_BOTH),
    "psum of both": Program(
        mapped(lambda v: lax.psum(v, ("y", "x")), P("x", "y"), P()), SQUARE, ON_BOTH
    ),
    "pmax": Program(mapped(lambda v: lax.pmax(v, "x"), P("x", "y"), P(None, "y")), SQUARE, ON_BOTH),
    "all_gather": Program(
        mapped(lambda v: lax.all_gather(v, "x", axis=0, tiled=True), P("x", "y"), P(None, "y")),
        SQUARE,
        ON_BOTH,
    ),
    "all_gather of both": Program(
        mapped(lambda v: lax.all_gather(v, ("y", "x")), P("x", "y"), P()), SQUARE, ON_BOTH
    ),
    "psum_scatter": Program(
        mapped(lambda v: lax.psum_scatter(v, "y", tiled=True), P("x"), P(("x", "y"))),
        SQUARE,
        ON_BOTH,
    ),
    "all_to_all": Program(
        mapped(lambda v: lax.all_to_all(v, "y", 0, 1, tiled=True), P("x", "y"), P("x", "y")),
        SQUARE,
        ON_BOTH,
    ),
    "ppermute": Program(
        mapped(lambda v: lax.ppermute(v, "y", RING), P("x", "y"), P("x", "y")), SQUARE, ON_BOTH
    ),
    "axis_index": Program(
        mapped(lambda v: v + lax.axis_index("x") * 10 + lax.axis_index("y"), P("x"), P("x", "y")),
        SQUARE,
        ON_BOTH,
    ),
}
"""Every collective, spelled out by the program."""

PROGRAMS: dict[str, Program] = MAPPED | {
    "data parallel": Program(
        training_step, ((8, 32), (32, 8), (64, 8)), (P(), P(), P("x")), mesh=(8,)
    ),
    "tensor parallel": Program(
        training_step, ((8, 32), (32, 8), (64, 8)), (P(None, "y"), P("y"), P("x"))
    ),
    "fully sharded": Program(
        training_step, ((8, 32), (32, 8), (64, 8)), (P("x"), P("x"), P("x")), mesh=(8,)
    ),
    "sequence parallel": Program(sequence_parallel, ((2, 16, 8),) * 3, (P("x", "y"),) * 3),
    "experts": Program(experts, ((64, 8), (4, 8, 8)), (P("y"), P("y"))),
    "scan": Program(loop, ((16, 16), (6, 16)), (P("x", "y"), P(None, "y"))),
    "while and cond": Program(while_and_cond, SQUARE, ON_BOTH),
    "uneven shards": Program(
        plain(lambda x: (constrained(P("y"))(x * 2), constrained(P(("x", "y")))(x.T @ x))),
        ((13, 7),),
        (P(),),
    ),
    "sort": Program(plain(lambda x: (jnp.sort(x, 0), lax.top_k(x, 3))), SQUARE, ON_BOTH),
    "gather and scatter": Program(gather_scatter, ((16, 8), (8,)), (P("x", "y"), P("y"))),
    "convolution": Program(
        convolution, ((4, 16, 16, 4), (3, 3, 4, 8)), (P("x", "y"), P(None, None, None, "y"))
    ),
    "explicit axes": Program(
        explicit_axes, ((8, 16), (16, 8)), (P("x", "y"), P("y", None)), explicit=True
    ),
    "random bits": Program(
        plain(
            lambda x: constrained(P("x", "y"))(x + jax.random.normal(jax.random.key(1), x.shape))
        ),
        SQUARE,
        ON_BOTH,
    ),
    "cholesky and fft": Program(
        plain(lambda x: (jnp.linalg.cholesky(x @ x.T + 16 * jnp.eye(16)), jnp.fft.fft(x))),
        SQUARE,
        ON_BOTH,
    ),
    "donated, one result": Program(plain(lambda x: x - x.sum()), SQUARE, ON_BOTH, donated=(0,)),
    "donated, two results": Program(
        plain(lambda x, y: (x.sum(0), y - x)), SQUARE * 2, ON_BOTH * 2, donated=(1,)
    ),
    "reshape over the mesh": Program(plain(lambda x: x.reshape(4, 64).sum(1)), SQUARE, ON_BOTH),
}

NATURAL = tuple(range(8))
ORDERS = {
    "natural": (NATURAL, tuple(PROGRAMS)),
    "transposed": ((0, 4, 1, 5, 2, 6, 3, 7), ("tensor parallel", "reshape over the mesh", *MAPPED)),
    "shuffled": ((0, 3, 5, 6, 7, 4, 2, 1), ("tensor parallel", "reshape over the mesh", *MAPPED)),
}
"""Devices of the mesh by place, and programs to run so: groups name devices by their place."""


@pytest.mark.parametrize(
    ("name", "order"),
    [
        pytest.param(name, order, id=f"{name}, {how}")
        for how, (order, names) in ORDERS.items()
        for name in names
    ],
)
def test_same_bits_as_cpu(
    name: str,
    order: tuple[int, ...],
    neuron_devices: list[jax.Device],
    cpu_devices: list[jax.Device],
) -> None:
    program = replace(PROGRAMS[name], order=order)
    found = run(program, neuron_devices)
    expected = run(program, cpu_devices)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert {device.platform for device in ours.devices()} == {"neuron"}
        assert ours.sharding.spec == theirs.sharding.spec
        np.testing.assert_array_equal(bits(ours), bits(theirs))


def bits(array: jax.Array) -> np.ndarray:
    return np.atleast_1d(np.asarray(array)).view(np.uint8)
