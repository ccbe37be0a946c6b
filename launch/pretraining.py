"""Llama's micro step as each core of neuronx-distributed runs it: its own part of every layer.

The published run is the tutorial's (`tp_zero1_llama_hf_pretrain`, Llama-3-8B): tensor parallelism
with `--sequence_parallel_enabled` and `--selective_checkpoint_enabled`. Taken from there:

* The residual stream is split by positions. Norms and additions work on a core's own positions;
  what a norm makes is gathered before the heads and the feed-forward layer, and partial sums behind
  them are added up and split again (Korthikanti et al., "Reducing Activation Recomputation in Large
  Transformer Models", 2022).
* Embedding, head and loss are split by vocabulary.
* Queries, keys and values are one product (`--fuse_qkv`), and so are gate and what passes it.
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
from models.layers.activations import activation
from models.layers.attention import dot_product_attention
from models.layers.embedding import Embedding
from models.layers.linear import Linear
from models.layers.rotary import Turn, apply_rotary
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


class FusedAttention(nnx.Module):
    """Self-attention whose queries, keys and values are one product."""

    def __init__(self, config: DecoderConfig, output: Linear) -> None:
        self.qkv = _linear([config.dim], [config.num_heads, 3 * config.head_dim], config)
        self.output = output

    def __call__(
        self, x: jax.Array, mask: jax.Array, *, turn: Turn, cache: None, start: int
    ) -> tuple[jax.Array, None]:
        """x [B, T, D], mask [T, T] -> [B, T, D], and no cache."""
        query, key, value = jnp.split(self.qkv(x), 3, axis=-1)
        query, key = apply_rotary(query, turn), apply_rotary(key, turn)
        return self.output(dot_product_attention(query, key, value, mask)), None


class FusedMLP(nnx.Module):
    """A gated layer whose gate and what passes it are one product."""

    def __init__(self, config: DecoderConfig, down: Linear) -> None:
        self.gate_up = _linear([config.dim], [2, config.hidden_dim], config)
        self.down = down
        self.act = config.act

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, T, D] -> [B, T, D]."""
        gate, up = jnp.split(self.gate_up(x), 2, axis=-2)
        return self.down((activation(self.act)(gate) * up)[..., 0, :])


def _linear(in_axes: list[int], out_axes: list[int], config: DecoderConfig) -> Linear:
    return Linear(
        in_axes, out_axes, stddev=config.initializer_range, param_dtype=config.param_dtype,
        rngs=nnx.Rngs(0),
    )  # fmt: skip


def fused(weights: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """A decoder's weights with those of one product in one array.

    Queries, keys and values of as many heads are [D, heads, 3 H], gate and up [D, 2, F].
    """
    found = dict(weights)
    for path in weights:
        block, _, name = path.partition(".attention.query")
        if name:
            parts = [found.pop(f"{block}.attention.{n}.kernel") for n in ("query", "key", "value")]
            found[f"{block}.attention.qkv.kernel"] = jnp.concatenate(parts, axis=-1)
            parts = [found.pop(f"{block}.mlp.{n}.kernel") for n in ("gate", "up")]
            found[f"{block}.mlp.gate_up.kernel"] = jnp.stack(parts, axis=1)
    return found


def fused_specs(specs: Mapping[str, PartitionSpec]) -> dict[str, PartitionSpec]:
    """How fused weights are split, of how a decoder's are."""
    found = dict(specs)
    for path in specs:
        block, _, name = path.partition(".attention.query")
        if name:
            for each in ("query", "key", "value"):
                found[f"{block}.attention.qkv.kernel"] = found.pop(
                    f"{block}.attention.{each}.kernel"
                )
            for each in ("gate", "up"):
                of_gate = found.pop(f"{block}.mlp.{each}.kernel")
                found[f"{block}.mlp.gate_up.kernel"] = PartitionSpec(of_gate[0], None, of_gate[1])
    return found


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


def _part(config: DecoderConfig) -> Any:
    """A core's layers, of its own shapes."""
    model: Any = Decoder(config, rngs=nnx.Rngs(0))
    for block in model.blocks:
        block.attention = FusedAttention(config, block.attention.output)
        block.mlp = FusedMLP(config, block.mlp.down)
    return model


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
    """Weights, FP32 sums of gradients, tokens [B, length + 1] -> loss, sums.

    Weights are fused, and split as `specs` says.
    """
    own = _own(config, mesh.shape[AXIS])
    graph, _ = split(nnx.eval_shape(lambda: _part(own)))

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
