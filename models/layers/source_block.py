"""The transformer block of encoder-decoders."""

from functools import partial
from typing import Any, Protocol

import jax
from flax import nnx
from jax.typing import ArrayLike

from models.layers.attention import Attention, CacheType
from models.layers.blocks import residual
from models.layers.cache import KVCache


class BlockLayers(Protocol):
    """Makes the layers of a block, as `BlockShape` does."""

    @property
    def pre_norm(self) -> bool: ...
    def norm(self) -> Any: ...
    def attention(self, rngs: nnx.Rngs) -> Attention: ...
    def mlp(self, rngs: nnx.Rngs) -> Any: ...


class SourceBlock(nnx.Module):
    """Attention, in a decoder attention to the source, and a feed-forward block, each a `residual`
    with a norm of its own."""

    def __init__(self, make: BlockLayers, *, is_decoder: bool, rngs: nnx.Rngs) -> None:
        self.pre_norm = make.pre_norm
        self.attention_norm, self.attention = make.norm(), make.attention(rngs)
        self.cross_norm = make.norm() if is_decoder else None
        self.cross_attention = make.attention(rngs) if is_decoder else None
        self.mlp_norm, self.mlp = make.norm(), make.mlp(rngs)

    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array | None,
        bias: jax.Array | None = None,
        *,
        source: tuple[KVCache, jax.Array | None] | None = None,
        cache: CacheType,
        start: ArrayLike = 0,
    ) -> tuple[jax.Array, CacheType]:
        """x [B, T, D], mask and bias as in `AttentionCall` -> [B, T, D], and the updated
        cache. A source is its keys and values, and which of its positions may be seen."""

        def look(x: jax.Array) -> jax.Array:
            nonlocal cache
            attended, cache = self.attention.extend(x, mask, cache=cache, start=start, bias=bias)
            return attended

        x = residual(x, look, self.attention_norm, pre_norm=self.pre_norm)
        cross, norm = self.cross_attention, self.cross_norm
        if cross is not None and source is not None:
            look_at_source = partial(cross.attend, memory=source[0], mask=source[1])
            x = residual(x, look_at_source, norm, pre_norm=self.pre_norm)
        return residual(x, self.mlp, self.mlp_norm, pre_norm=self.pre_norm), cache
