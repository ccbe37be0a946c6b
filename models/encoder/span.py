"""Attention of which half is a convolution (Jiang et al., "ConvBERT", 2020).

Axis names: B texts, T tokens, D model width, N heads, H head_dim, K window.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from models.layers.attention import Attention
from models.layers.axes import fill_up
from models.layers.cache import KVCache
from models.layers.factory import LayerFactory


@dataclass(frozen=True)
class SpanConvolution:
    """The part of attention that is a convolution."""

    num_heads: int  # of it, and as many of attention
    window: int  # tokens, an odd number


class SpanAttention(Attention):
    """Heads that look at all tokens, and as many that sum up their neighbourhood, with weights that
    are made of a query and the keys of the neighbourhood."""

    def __init__(self, config: SpanConvolution, dim: int, make: LayerFactory) -> None:
        count, width = config.num_heads, dim // config.num_heads // 2
        super().__init__(
            dim,
            num_heads=count,
            num_kv_heads=count,
            head_dim=width,
            bias=True,
            out_stddev=make.stddev,
            **make.weights,
        )
        conv = partial(make.conv, dim, bias=False, axes=("channels", "residual"))

        self.window, self.count = config.window, count
        heads = {"heads": count, "head_dim": width}
        self.output = make.dense({"heads": 2 * count, "head_dim": width}, {"dim": dim})
        self.span_depthwise = conv(dim, (config.window,), padding=config.window // 2, groups=dim)
        self.span_pointwise = conv(count * width, (1,))
        self.span_bias = make.constant(residual=count * width, scale=1)
        self.span_weights = make.dense(heads, {"features": count * config.window})
        self.span_value = make.dense({"dim": dim}, heads)

    def look(self, x: jax.Array, mask: jax.Array | None) -> jax.Array:
        """x [B, T, D], mask as in `AttentionCall` -> [B, T, D]."""
        query, count = self.query(x), self.count
        attended = self._attend_heads(query, KVCache(self.key(x), self.value(x)), mask, None)
        spans = self._spans(x, query[:, :, :count])
        both = jnp.concatenate([attended[:, :, :count], spans], axis=2)
        return self.output(fill_up(both, 2, self.output.kernel.shape[0]))

    def _spans(self, x: jax.Array, query: jax.Array) -> jax.Array:
        """The convolution of x [B, T, D] with query [B, T, N, H] -> [B, T, N, H]."""
        batch, length, heads, _ = query.shape
        keys = self.span_pointwise(self.span_depthwise(x)) + self.span_bias[..., 0].astype(x.dtype)
        seen = fill_up(keys.reshape(query.shape) * query, 2, self.span_weights.kernel.shape[0])
        scores = self.span_weights(seen).astype(jnp.float32)
        weights = jax.nn.softmax(scores.reshape(batch, length, heads, self.window))
        side = self.window // 2
        values = self.span_value(x)[:, :, :heads]
        values = jnp.pad(values, ((0, 0), (side, side), (0, 0), (0, 0)))
        parts = (
            weights[..., k, None] * values[:, k : k + length].astype(jnp.float32)
            for k in range(self.window)
        )
        return sum(parts, jnp.zeros(query.shape, jnp.float32)).astype(x.dtype)
