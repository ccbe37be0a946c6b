"""Programs for the rules of findings: one that breaks each of them, and ordinary ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import neuronjax

Case = tuple[Callable[..., Any], Sequence[Any]]

BF16 = jnp.bfloat16


def ones(*shape: int, dtype: Any = np.float32) -> Any:
    return np.ones(shape, dtype)


def on_four(function: Callable[..., Any]) -> Callable[..., Any]:
    """On each of four cores, with arguments that all of them have."""
    mesh = neuronjax.make_mesh({"data": 4})
    spec = PartitionSpec()
    return jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)


def gathers(x: jax.Array) -> list[jax.Array]:
    return [jax.lax.all_gather(x[row], "data") for row in range(8)]


def wide_sum(x: jax.Array) -> jax.Array:
    return jax.lax.psum(x, "data")


def turns(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 200, lambda _, x: jnp.tanh(x), x)


def split_in_a_loop(key: jax.Array) -> jax.Array:
    def draw(key: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        key, own = jax.random.split(key)
        return key, jax.random.bits(own, (8, 8))

    return jax.lax.scan(draw, key, None, length=4)[1]


def mlp(weights: Any, x: jax.Array) -> jax.Array:
    for weight in weights:
        x = jax.nn.relu(x @ weight)
    return x


def loss(weights: Any, x: jax.Array) -> jax.Array:
    return (mlp(weights, x).astype(jnp.float32) ** 2).mean()


def attention(x: jax.Array, weight: jax.Array) -> jax.Array:
    queries, keys, values = jnp.split(x @ weight, 3, axis=-1)
    return jax.nn.softmax(queries @ keys.T / 16) @ values


def norm(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def adam(state: Any, grads: jax.Array) -> Any:
    weights, mean, square = state
    mean, square = 0.9 * mean + 0.1 * grads, 0.99 * square + 0.01 * grads**2
    return weights - 1e-3 * mean / (jnp.sqrt(square) + 1e-8), mean, square


def convolution(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


BREAKING: dict[str, Case] = {
    "threefry": (
        lambda key: jax.random.bits(key, (128, 512)), [jax.random.key(0, impl="threefry2x32")]
    ),
    "gpsimd-bound": (lambda x: x % 7, [ones(512, 512, dtype=np.int32)]),
    "elementwise-bound": (lambda x: jnp.tanh(jnp.exp(x)) / (x + 1), [ones(512, 1024)]),
    "tensor-idle": (attention, [ones(512, 384, dtype=BF16), ones(384, 384, dtype=BF16)]),
    "transposes": (lambda x, w: x @ w.T, [ones(1024, 512), ones(512, 512)]),
    "slow-transfers": (lambda x: x[:, ::16] * 2, [ones(1024, 1024)]),
    "spills": (lambda x: jax.nn.log_softmax(x), [ones(512, 8192)]),
    "memory-bound": (lambda x, w: x @ w, [ones(1, 4096, dtype=BF16), ones(4096, 4096, dtype=BF16)]),
    "small-collectives": (on_four(gathers), [ones(8, 128)]),
    "exposed-collectives": (on_four(wide_sum), [ones(1024, 1024)]),
    "waiting": (turns, [ones(8, 8)]),
    "launch": (lambda x: x + 1, [ones(8, 8)]),
}  # fmt: skip
"""A program for each rule."""

WEIGHTS = [ones(1024, 1024, dtype=BF16)] * 3
X = ones(1024, 1024, dtype=BF16)

ORDINARY: dict[str, tuple[Case, set[str]]] = {
    "mlp": ((mlp, [WEIGHTS, X]), set()),
    "gradient": ((jax.grad(loss), [WEIGHTS, X]), {"spills"}),
    "wide product": (
        (lambda x, w: x @ w, [ones(2048, 1024, dtype=BF16), ones(1024, 2048, dtype=BF16)]), set()
    ),
    "norm": ((norm, [ones(2048, 1024, dtype=BF16)]), {"elementwise-bound"}),
    "adam": ((adam, [(ones(1024, 1024),) * 3, ones(1024, 1024)]), {"elementwise-bound"}),
    "convolution": (
        (convolution, [ones(8, 32, 32, 64, dtype=BF16), ones(3, 3, 64, 64, dtype=BF16)]),
        {"memory-bound", "transposes", "spills"},
    ),
    "embedding": (
        (lambda rows, at: rows[at], [ones(8192, 512), np.arange(1024)]), {"slow-transfers"}
    ),
    "residual": ((lambda x, y: x + 2 * y, [ones(2048, 1024), ones(2048, 1024)]), set()),
    "gelu": ((lambda x: jax.nn.gelu(x), [ones(2048, 1024, dtype=BF16)]), {"elementwise-bound"}),
    "sum": ((lambda x: x.sum(0), [ones(2048, 1024)]), set()),
}  # fmt: skip
"""Programs that people write, and what is found in them."""
