"""The block of MobileBERT (Sun et al., 2020): a wide residual stream around a narrow block.

Axis names: B texts, T tokens, D model width, E width inside a block.
"""

from dataclasses import dataclass, replace

import jax
from flax import nnx

from models.layers.blocks import BlockShape
from models.layers.cache import KVCache
from models.layers.factory import LayerFactory
from models.layers.norms import Affine
from models.layers.rotary import Turn


@dataclass(frozen=True)
class Bottleneck:
    """What is narrow between the ends of a block."""

    dim: int  # E
    num_mlps: int  # feed-forward blocks, one after the other


class Resize(nnx.Module):
    """y = norm(dense(x) + residual), where the norm only scales and shifts."""

    def __init__(self, shape: BlockShape, axes: dict[str, int], *, rngs: nnx.Rngs) -> None:
        start, end = axes
        make = LayerFactory.of(shape, rngs)
        self.dense = make.linear(axes[start], axes[end], axes=(start, end))
        self.norm = Affine(axes[end], param_dtype=shape.param_dtype)

    def __call__(self, x: jax.Array, residual: jax.Array | None = None) -> jax.Array:
        y = self.dense(x)
        return self.norm(y if residual is None else y + residual)


class BottleneckBlock(nnx.Module):
    """Attention and feed-forward blocks of width E.

    Of each token one narrow vector makes queries and keys, and another is what the results are
    added to; values are made of the wide one.
    """

    def __init__(self, shape: BlockShape, bottleneck: Bottleneck, *, rngs: nnx.Rngs) -> None:
        narrow = replace(shape, dim=bottleneck.dim)
        into = {"dim": shape.dim, "features": narrow.dim}

        def norm() -> Affine:
            return Affine(narrow.dim, param_dtype=shape.param_dtype)

        self.narrow = Resize(shape, into, rngs=rngs)
        self.look = Resize(shape, into, rngs=rngs)
        self.attention = narrow.attention(rngs, value_dim=shape.dim)
        self.attention_norm = norm()
        count = bottleneck.num_mlps - 1
        self.early_mlps = nnx.List([narrow.mlp(rngs) for _ in range(count)])
        self.early_norms = nnx.List([norm() for _ in range(count)])
        self.mlp, self.mlp_norm = narrow.mlp(rngs), norm()
        self.wide = Resize(shape, {"features": narrow.dim, "dim": shape.dim}, rngs=rngs)

    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array | None,
        relative: jax.Array | None = None,
        turn: Turn | None = None,
    ) -> jax.Array:
        """x [B, T, D], mask as in `AttentionCall` -> [B, T, D]."""
        narrow, look = self.narrow(x), self.look(x)
        memory = KVCache(self.attention.key(look), self.attention.value(x))
        y = self.attention_norm(narrow + self.attention.attend(look, memory, mask))
        for mlp, norm in zip(self.early_mlps, self.early_norms, strict=True):
            y = norm(y + mlp(y))
        return self.wide(self.mlp_norm(y + self.mlp(y)), x)
