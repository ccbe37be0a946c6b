"""Steps of a decoder of any size as shapes, for `neuronjax estimate`, `sweep` and `cost`.

The decoder has RMSNorm, rotary positions, grouped queries and a gated MLP, as Llama, Qwen and
Mistral do; the defaults are the sizes of Llama 3.1 8B (https://huggingface.co/meta-llama). Heads,
hidden features and the vocabulary are split over the mesh's axis ``model``, sequences over
``data``; an axis that the mesh does not have is left out, and there are at least as many key and
value heads as the axis ``model`` is long. With ``pad`` (``--pad``) sizes that it does not divide
are rounded up. Nothing here allocates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

_THETA = 500_000.0
_TINY = 1e-5


class Step(TypedDict):
    """A workload, as `neuronjax estimate` takes it from a function."""

    fn: jax.stages.Wrapped
    arguments: tuple[object, ...]
    """Trees of ``jax.ShapeDtypeStruct`` with shardings."""
    tokens: int
    samples: int
    model_flops: int
    """What MFU counts: products with weights and attention's, of sizes that are not padded."""
    kinds: dict[str, str]
    assumed: tuple[str, ...]
    layers: int
    """The depth of the whole model, whichever depth this one has."""


@dataclass(frozen=True)
class _Sizes:
    dim: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    def flops(self, layers: int, tokens: int, context: int) -> int:
        """The operations of a pass over tokens that look at `context` of them: 2 for each weight
        and token, and 4 for each head feature, token and one that it looks at."""
        attention = self.heads * self.head_dim
        projections = self.dim * 2 * (attention + self.kv_heads * self.head_dim)
        weights = layers * (projections + 3 * self.dim * self.hidden) + self.vocab * self.dim
        return 2 * tokens * weights + 4 * tokens * layers * attention * context

    def changed(self, asked: _Sizes) -> tuple[str, ...]:
        """Describes what was padded, in words."""
        sizes = vars(self).items()
        return tuple(
            f"{name} padded from {vars(asked)[name]} to {size}"
            for name, size in sizes
            if size != vars(asked)[name]
        )


_LLAMA = _Sizes(dim=4096, hidden=14_336, heads=32, kv_heads=8, head_dim=128, vocab=128_256)
"""The sizes of Llama 3.1 8B, the default."""


def _split(sizes: _Sizes, parts: int, pad: bool) -> _Sizes:
    """Sizes for a number of parts: each has a key and value head at least, which are copies if
    there are fewer. With `pad`, everything that is split is rounded up, heads to whole groups."""
    kv_heads = max(sizes.kv_heads, parts)
    if not pad:
        return replace(sizes, kv_heads=kv_heads)
    kv_heads = _up(kv_heads, parts)
    return replace(
        sizes,
        hidden=_up(sizes.hidden, parts),
        heads=_up(sizes.heads, kv_heads),
        kv_heads=kv_heads,
        vocab=_up(sizes.vocab, parts),
    )


def _up(size: int, divisor: int) -> int:
    return -(-size // divisor) * divisor


@dataclass(frozen=True)
class _Shapes:
    """Makes arguments on a mesh, of one type."""

    mesh: AbstractMesh
    dtype: str

    def __call__(self, *shape: int, split: str = "", dtype: str | None = None) -> Any:
        """`split` has a letter for each dimension: ``d``, ``m`` or a dot for the whole."""
        axes = {"d": "data", "m": "model"}
        names = [axes.get(letter) for letter in split]
        spec = PartitionSpec(*(name if name in self.mesh.shape else None for name in names))
        sharding = NamedSharding(self.mesh, spec)
        return jax.ShapeDtypeStruct(shape, dtype or self.dtype, sharding=sharding)


def decode(
    mesh: AbstractMesh,
    *,
    batch: int = 1,
    context: int = 4096,
    dtype: str = "bfloat16",
    layers: int | None = None,
    depth: int = 32,
    dim: int = _LLAMA.dim,
    hidden: int = _LLAMA.hidden,
    heads: int = _LLAMA.heads,
    kv_heads: int = _LLAMA.kv_heads,
    head_dim: int = _LLAMA.head_dim,
    vocab: int = _LLAMA.vocab,
    pad: bool = False,
) -> Step:
    """A step that decodes a token for each of `batch` sequences with caches of `context` places."""
    asked = _Sizes(dim, hidden, heads, kv_heads, head_dim, vocab)
    sizes = _split(asked, mesh.shape.get("model", 1), pad)
    make = _Shapes(mesh, dtype)
    places = make(batch, context, sizes.kv_heads, head_dim, split="d.m.")

    def step(weights: Any, caches: Any, tokens: jax.Array, position: jax.Array) -> Any:
        x = weights["embedding"][tokens][:, None]
        held = jnp.arange(context) <= position
        kept = []
        for weight, (keys, values) in zip(weights["layers"], caches, strict=True):
            queries, key, value = _projected(weight, x, position[None])
            keys = jax.lax.dynamic_update_slice_in_dim(keys, key, position, 1)
            values = jax.lax.dynamic_update_slice_in_dim(values, value, position, 1)
            x = _block(weight, x, queries, keys, values, held)
            kept.append((keys, values))
        return jnp.argmax(_normed(x[:, 0], weights["norm"]) @ weights["head"], -1), kept

    return {
        "fn": jax.jit(step, donate_argnums=1),
        "arguments": (
            _weights(make, sizes, layers or depth),
            [(places, places)] * (layers or depth),
            make(batch, split="d", dtype="int32"),
            make(dtype="int32"),
        ),
        "kinds": {"weights": "weights", "tokens": "inputs", "position": "inputs"},
        "tokens": batch,
        "samples": batch,
        "model_flops": asked.flops(layers or depth, batch, context),
        "assumed": sizes.changed(asked) if pad else (),
        "layers": depth,
    }


def train(
    mesh: AbstractMesh,
    *,
    batch: int = 8,
    sequence: int = 4096,
    dtype: str = "bfloat16",
    layers: int | None = None,
    depth: int = 32,
    dim: int = _LLAMA.dim,
    hidden: int = _LLAMA.hidden,
    heads: int = _LLAMA.heads,
    kv_heads: int = _LLAMA.kv_heads,
    head_dim: int = _LLAMA.head_dim,
    vocab: int = _LLAMA.vocab,
    pad: bool = False,
) -> Step:
    """The loss of `batch` sequences and its gradients; layers are recomputed backward."""
    asked = _Sizes(dim, hidden, heads, kv_heads, head_dim, vocab)
    sizes = _split(asked, mesh.shape.get("model", 1), pad)
    make = _Shapes(mesh, dtype)

    def loss(weights: Any, tokens: jax.Array) -> jax.Array:
        x = weights["embedding"][tokens]
        positions = jnp.arange(sequence)
        seen = positions[:, None] >= positions

        @jax.checkpoint
        def block(x: jax.Array, weight: Any) -> jax.Array:
            queries, keys, values = _projected(weight, x, positions)
            return _block(weight, x, queries, keys, values, seen)

        for weight in weights["layers"]:
            x = block(x, weight)
        logits = (_normed(x, weights["norm"]) @ weights["head"]).astype(jnp.float32)
        following = jax.nn.one_hot(jnp.roll(tokens, -1, 1), sizes.vocab)
        return -(jax.nn.log_softmax(logits) * following).sum(-1).mean()

    return {
        "fn": jax.jit(jax.value_and_grad(loss)),
        "arguments": (
            _weights(make, sizes, layers or depth),
            make(batch, sequence, split="d.", dtype="int32"),
        ),
        "kinds": {"weights": "weights", "tokens": "inputs"},
        "tokens": batch * sequence,
        "samples": batch,
        "model_flops": 3 * asked.flops(layers or depth, batch * sequence, sequence),
        "assumed": sizes.changed(asked) if pad else (),
        "layers": depth,
    }


def _weights(make: _Shapes, sizes: _Sizes, depth: int) -> dict[str, Any]:
    dim, hidden, head = sizes.dim, sizes.hidden, sizes.head_dim
    layer = {
        "norm": make(2, dim),
        "queries": make(dim, sizes.heads, head, split=".m."),
        "keys": make(dim, sizes.kv_heads, head, split=".m."),
        "values": make(dim, sizes.kv_heads, head, split=".m."),
        "out": make(sizes.heads, head, dim, split="m.."),
        "gate": make(dim, hidden, split=".m"),
        "up": make(dim, hidden, split=".m"),
        "down": make(hidden, dim, split="m."),
    }
    return {
        "embedding": make(sizes.vocab, dim),
        "layers": [layer] * depth,
        "norm": make(dim),
        "head": make(dim, sizes.vocab, split=".m"),
    }


def _normed(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    root = jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + _TINY)
    return (wide * root).astype(x.dtype) * scale


def _turned(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Rotary positions: x [batch, sequence, heads, features]."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * _THETA ** (-jnp.arange(half) / half)
    cosine, sine = (f(angles)[:, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)


@jax.named_scope("projections")
def _projected(
    weight: Any, x: jax.Array, positions: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries, keys and values of x [batch, sequence, dim]."""
    x = _normed(x, weight["norm"][0])
    queries = jnp.einsum("bsd,dhf->bshf", x, weight["queries"])
    keys = jnp.einsum("bsd,dhf->bshf", x, weight["keys"])
    values = jnp.einsum("bsd,dhf->bshf", x, weight["values"])
    return _turned(queries, positions), _turned(keys, positions), values


def _block(
    weight: Any, x: jax.Array, queries: jax.Array, keys: jax.Array, values: jax.Array, seen: Any
) -> jax.Array:
    """Attention and MLP; `seen` broadcasts to [queries, keys]."""
    batch, length, _, features = queries.shape
    with jax.named_scope("attention"):
        grouped = queries.reshape(batch, length, keys.shape[2], -1, features)
        scores = jnp.einsum("bshgf,bthf->bhgst", grouped, keys).astype(jnp.float32)
        scores = jnp.where(seen, scores * features**-0.5, -jnp.inf)
        weights = jax.nn.softmax(scores).astype(x.dtype)
        mixed = jnp.einsum("bhgst,bthf->bshgf", weights, values)
        x += jnp.einsum("bshf,hfd->bsd", mixed.reshape(queries.shape), weight["out"])
    with jax.named_scope("mlp"):
        normed = _normed(x, weight["norm"][1])
        hidden = jax.nn.silu(normed @ weight["gate"]) * (normed @ weight["up"])
        return x + hidden @ weight["down"]
