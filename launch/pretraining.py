"""Llama's micro step as each core of neuronx-distributed runs it: its own part of every layer.

The published run is the tutorial's (`tp_zero1_llama_hf_pretrain`, Llama-3-8B): tensor parallelism
with `--sequence_parallel_enabled` and `--selective_checkpoint_enabled`. Taken from there:

* The residual stream is split by positions. Norms and additions work on a core's own positions;
  what a norm makes is gathered before the heads and the feed-forward layer, and partial sums behind
  them are added up and split again (Korthikanti et al., "Reducing Activation Recomputation in Large
  Transformer Models", 2022).
* Embedding, head and loss are split by vocabulary.
* Scores of attention are made again in the backward pass, not kept.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh, PartitionSpec

from models.decoder.config import DecoderConfig
from models.decoder.model import Decoder
from models.layers.embedding import Embedding
from models.parameters import merge, split

AXIS = "model"
"""The mesh axis of tensor and sequence parallelism."""


class Gathered(nnx.Module):
    """A layer on a core's own positions [B, T/cores, D], whose results all cores get."""

    def __init__(self, inner: nnx.Module) -> None:
        self.inner = inner

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, T/cores, D] -> [B, T, D]."""
        assert callable(self.inner)
        return jax.lax.all_gather(self.inner(x), AXIS, axis=1, tiled=True)


class Scattered(nnx.Module):
    """A layer that makes partial sums of all positions, of which a core gets its own ones' sums."""

    def __init__(self, inner: nnx.Module) -> None:
        self.inner = inner

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, T, …] -> [B, T/cores, D]."""
        assert callable(self.inner)
        return jax.lax.psum_scatter(self.inner(x), AXIS, scatter_dimension=1, tiled=True)


class PartialEmbedding(nnx.Module):
    """The vectors of tokens that a core has, zeros for the others'."""

    def __init__(self, inner: Embedding) -> None:
        self.inner = inner

    def __call__(self, tokens: jax.Array, dtype: Any) -> jax.Array:
        """Tokens [B, T] -> a core's own positions [B, T/cores, D] of the sums over cores."""
        own = tokens - jax.lax.axis_index(AXIS) * len(self.inner.table[...])
        here = (own >= 0) & (own < len(self.inner.table[...]))
        vectors = self.inner(jnp.where(here, own, 0), dtype)
        vectors = jnp.where(here[..., None], vectors, 0)
        return jax.lax.psum_scatter(vectors, AXIS, scatter_dimension=1, tiled=True)


def parallel_cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """-log softmax(logits)[target] of logits [..., V/cores] split by vocabulary, targets [...]."""
    largest = jax.lax.stop_gradient(jnp.max(logits, axis=-1))
    largest = jax.lax.pmax(largest, AXIS)
    own = jnp.arange(logits.shape[-1]) + jax.lax.axis_index(AXIS) * logits.shape[-1]
    is_target = targets[..., None] == own
    target = jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)
    total = jnp.sum(jnp.exp(logits - largest[..., None]), axis=-1)
    return jnp.log(jax.lax.psum(total, AXIS)) + largest - jax.lax.psum(target, AXIS)


def _own(config: DecoderConfig, cores: int) -> DecoderConfig:
    """The shapes of one of so many cores."""
    return replace(
        config,
        vocab_size=config.vocab_size // cores,
        hidden_dim=config.hidden_dim // cores,
        num_heads=config.num_heads // cores,
        num_kv_heads=config.num_kv_heads // cores,
    )


def _parallel(model: Any) -> Any:
    """A core's layers, with the communication about them."""
    model.embedding = PartialEmbedding(model.embedding)
    for block in model.blocks:
        for name in ("attention_norm", "mlp_norm"):
            setattr(block, name, Gathered(getattr(block, name)))
        for layer, name in ((block.attention, "output"), (block.mlp, "down")):
            setattr(layer, name, Scattered(getattr(layer, name)))
    model.norm = Gathered(model.norm)
    return model


def _but_scores(length: int) -> Callable[..., bool]:
    """What the backward pass finds: all but [length, length] arrays, which scores are, and but
    positions and constants, which are made again at once."""

    def is_kept(primitive: Any, *operands: Any, **settings: Any) -> bool:
        if not any(each.size > 1 and jnp.issubdtype(each.dtype, jnp.floating) for each in operands):
            return False
        shapes = (*(each.shape for each in operands), settings.get("shape") or ())
        from_scores = any(tuple(shape[-2:]) == (length, length) for shape in shapes)
        if primitive is jax.lax.dot_general_p:
            _, (batch, _) = settings["dimension_numbers"]
            return from_scores or not batch
        return not from_scores or primitive in (jax.lax.reduce_max_p, jax.lax.reduce_sum_p)

    return is_kept


def micro_step(
    mesh: AbstractMesh, config: DecoderConfig, specs: Mapping[str, PartitionSpec], length: int
) -> Callable[..., Any]:
    """Weights, FP32 sums of gradients, tokens [B, length + 1] -> loss, sums; weights by `specs`."""
    own = _own(config, mesh.shape[AXIS])
    graph, _ = split(nnx.eval_shape(lambda: Decoder(own, rngs=nnx.Rngs(0))))

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(dict(specs), dict(specs), PartitionSpec()),
        out_specs=(PartitionSpec(), dict(specs)),
    )
    def step(weights: Any, sums: Any, rows: jax.Array) -> Any:
        @partial(jax.checkpoint, policy=_but_scores(length))
        def loss(weights: Any) -> jax.Array:
            logits = _parallel(merge(graph, weights))(rows[:, :-1])
            return jnp.mean(parallel_cross_entropy(logits, rows[:, 1:]))

        value, gradients = jax.value_and_grad(loss)(weights)
        return value, jax.tree.map(lambda s, g: s + g.astype(jnp.float32), sums, gradients)

    return step
