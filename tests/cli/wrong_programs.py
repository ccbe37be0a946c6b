"""Workloads that are wrong, each in one way; `test_wrong_inputs` says what is told of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

Made = dict[str, Any]


def _array(mesh: AbstractMesh, *shape: int, spec: tuple[Any, ...] = ()) -> jax.ShapeDtypeStruct:
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)


def _made(fn: Callable[..., Any], *arguments: Any, **more: Any) -> Made:
    return {"fn": fn, "arguments": arguments, **more}


def _product(params: Any, x: jax.Array) -> jax.Array:
    return x @ params["up"]


def odd_weight(mesh: AbstractMesh) -> Made:
    """A weight that three cores do not divide."""
    up = _array(mesh, 1024, 4096, spec=(None, "model"))
    return _made(_product, {"up": up}, _array(mesh, 64, 1024))


def odd_rows(mesh: AbstractMesh) -> Made:
    """Rows split over two axes, whose product does not divide them."""
    return _made(jnp.tanh, _array(mesh, 1000, spec=(("data", "model"),)))


def odd_result(mesh: AbstractMesh) -> Made:
    sharding = NamedSharding(mesh, PartitionSpec("model"))
    return _made(jax.jit(lambda x: x, out_shardings=sharding), _array(mesh, 1024))


def odd_shard(mesh: AbstractMesh) -> Made:
    spec = PartitionSpec("model")
    mapped = jax.shard_map(lambda x: 2 * x, mesh=mesh, in_specs=spec, out_specs=spec)
    return _made(lambda x: mapped(x), _array(mesh, 1024))


def deep_spec(mesh: AbstractMesh) -> Made:
    """A spec of more dimensions than its array has."""
    return _made(jnp.tanh, _array(mesh, 1024, spec=(None, "model")))


def missing_axis(mesh: AbstractMesh) -> Made:
    return _made(jnp.tanh, _array(mesh, 1024, spec=("layers",)))


def mismatch(mesh: AbstractMesh) -> Made:
    return _made(lambda x, y: x @ y, _array(mesh, 8, 16), _array(mesh, 8, 16))


def concrete(mesh: AbstractMesh) -> Made:
    """Python that looks at a value."""
    return _made(lambda x: x if x.sum() > 0 else -x, _array(mesh, 8))


def raises(mesh: AbstractMesh) -> Made:
    def run(x: jax.Array) -> jax.Array:
        raise KeyError("of several\nlines")

    return _made(run, _array(mesh, 8))


def fails_to_make(mesh: AbstractMesh) -> Made:
    raise ZeroDivisionError


def no_argument(mesh: AbstractMesh) -> Made:
    return _made(lambda x: x)


def text_argument(mesh: AbstractMesh) -> Made:
    return _made(lambda x: x, "text")


def odd_kinds(mesh: AbstractMesh) -> Made:
    return _made(jnp.tanh, _array(mesh, 8), kinds={"y": "weights"})


def odd_key(mesh: AbstractMesh) -> Made:
    return _made(jnp.tanh, _array(mesh, 8), flops=3)
