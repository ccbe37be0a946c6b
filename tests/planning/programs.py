"""Workloads of these tests: a small stack of layers, one core or several."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

WIDTH, HIDDEN, ROWS = 128, 256, 128


def stack(
    mesh: AbstractMesh, batch: int = ROWS, dtype: str = "bfloat16", layers: int | None = None
) -> dict[str, Any]:
    """Layers of two products; hidden units are split over axis `model`, if there is one."""
    depth = layers or 8
    axis = "model" if "model" in mesh.shape else None

    def array(shape: tuple[int, ...], *spec: Any) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def forward(params: list[Any], batch: jax.Array) -> jax.Array:
        for up, down in params:
            batch = batch + jnp.tanh(batch @ up) @ down
        return batch

    layer = (array((WIDTH, HIDDEN), None, axis), array((HIDDEN, WIDTH), axis, None))
    return {
        "fn": jax.jit(forward, donate_argnums=1),
        "arguments": ([layer] * depth, array((batch, WIDTH))),
        "tokens": batch,
        "kinds": {"params": "weights"},
        "layers": 8,
    }


def whole(batch: int = ROWS) -> tuple[Any, ...]:
    """A tuple, without layers or mesh."""
    return (lambda x: x @ x.T), jax.ShapeDtypeStruct((batch, WIDTH), jnp.bfloat16)


def nonsense() -> int:
    """No workload."""
    return 3
