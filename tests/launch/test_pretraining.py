"""The micro step of parts of layers, against the whole model on one device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from launch.pretraining import AXIS, fused, fused_specs, micro_step
from models.decoder.config import DecoderConfig
from models.decoder.model import Decoder
from models.decoder.sharding import AXES
from models.losses import cross_entropy
from models.parameters import merge, split
from models.sharding import RULES, partition_spec

CORES, LENGTH = 4, 16
CONFIG = DecoderConfig(
    vocab_size=32, num_layers=2, dim=24, hidden_dim=40, num_heads=8, num_kv_heads=8, head_dim=6,
    max_seq_len=LENGTH, tie_embeddings=False, initializer_range=0.3,
)  # fmt: skip


def test_same_loss_and_gradients_as_the_whole_model() -> None:
    graph, weights = split(Decoder(CONFIG, rngs=nnx.Rngs(0)))
    weights = {path: jnp.asarray(each) for path, each in weights.items()}
    rows = jnp.asarray(np.random.default_rng(0).integers(0, 32, (2, LENGTH + 1)))

    def loss(weights: Any) -> jax.Array:
        return jnp.mean(cross_entropy(merge(graph, weights)(rows[:, :-1]), rows[:, 1:]))

    expected, gradients = jax.value_and_grad(loss)(weights)
    mesh = jax.make_mesh((CORES,), (AXIS,), devices=jax.devices("cpu")[:CORES])
    specs = fused_specs({path: partition_spec(path, AXES, RULES, (AXIS,)) for path in weights})
    placed = {
        path: jax.device_put(each, NamedSharding(mesh, specs[path]))
        for path, each in fused(weights).items()
    }
    sums = jax.tree.map(jnp.ones_like, placed)
    step = jax.jit(micro_step(mesh.abstract_mesh, CONFIG, specs, LENGTH))
    with jax.set_mesh(mesh):
        found, added = step(
            placed, sums, jax.device_put(rows, NamedSharding(mesh, PartitionSpec()))
        )
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for path, each in fused(gradients).items():
        np.testing.assert_allclose(added[path] - 1, each, rtol=1e-4, atol=2e-6, err_msg=path)
