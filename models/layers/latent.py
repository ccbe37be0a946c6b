"""Multi-head latent attention: keys and values of all heads are made of one short vector per token.

DeepSeek-AI, "DeepSeek-V2", 2024. Axis names as in `models.layers.attention`; R numbers of a head
turn, V is the width of a head's values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from models.layers.attention import Attention, dot_product_attention
from models.layers.cache import KVCache
from models.layers.linear import Linear
from models.layers.masks import Visibility
from models.layers.norms import RMSNorm
from models.layers.rotary import Turn, apply_rotary

_EPS = 1e-6  # of the norms of short vectors, whatever config.json says of the others


@dataclass(frozen=True)
class Latent:
    """The widths of latent attention."""

    dim: int  # of the vector that keys and values are made of
    query_dim: int | None  # of the one that queries are made of; None = of the residual stream
    turned_dim: int  # R: how many numbers of queries and keys turn; the keys' are of all heads
    value_dim: int  # V


class LatentAttention(Attention):
    """Self-attention whose `num_heads` heads of keys and values have a common origin.

    The cache holds the keys and values themselves: values have zeros behind them that make them as
    wide as keys. `bias` is of the maps to and from the residual stream. Other attributes are those
    of `Attention`.
    """

    query_down: Linear | None
    query_down_norm: RMSNorm | None

    def __init__(
        self,
        dim: int,
        latent: Latent,
        *,
        num_heads: int,
        head_dim: int,
        bias: bool,
        scale: float | None,
        stddev: float,
        out_stddev: float,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        project = partial(Linear, stddev=stddev, param_dtype=param_dtype, rngs=rngs)
        norm = partial(RMSNorm, eps=_EPS, axis="latent", param_dtype=param_dtype)

        def heads(before: Mapping[str, int], width: int) -> Linear:
            return project(before, {"heads": num_heads, "head_dim": width})

        self.mix, self.rotate, self.fused = dot_product_attention, apply_rotary, False
        self.cache_scales, self.dropout, self.sinks = (nnx.data(None) for _ in range(3))
        self.latent, self.head_dim, self.scale, self.softcap = latent, head_dim, scale, None
        self.query_norm = self.key_norm = None
        source = {"dim": dim}
        self.query_down, self.query_down_norm = nnx.data(None), nnx.data(None)
        if latent.query_dim is not None:
            source = {"latent": latent.query_dim}
            self.query_down = nnx.data(project({"dim": dim}, source, bias=bias))
            self.query_down_norm = nnx.data(norm(latent.query_dim))
        self.query = heads(source, head_dim)
        self.down = project({"dim": dim}, {"latent": latent.turned_dim + latent.dim}, bias=bias)
        self.down_norm = norm(latent.dim)
        self.key = heads({"latent": latent.dim}, head_dim - latent.turned_dim)
        self.value = heads({"latent": latent.dim}, latent.value_dim)
        inside = {"heads": num_heads, "head_dim": latent.value_dim}
        self.output = project(inside, {"dim": dim}, bias=bias, stddev=out_stddev)

    def _heads(self, x: jax.Array, turn: Turn | None) -> tuple[jax.Array, KVCache]:
        source = x
        if self.query_down is not None and self.query_down_norm is not None:
            source = self.query_down_norm(self.query_down(x))
        turned, latent = jnp.split(self.down(x), [self.latent.turned_dim], axis=-1)
        latent = self.down_norm(latent)
        key, value = self.key(latent), self.value(latent)
        turned = self._prepare(turned[..., None, :], None, turn)
        turned = jnp.broadcast_to(turned, (*key.shape[:-1], turned.shape[-1]))
        missing = self.head_dim - value.shape[-1]
        value = jnp.pad(value, [(0, 0)] * (value.ndim - 1) + [(0, missing)])
        query = self._prepare(self.query(source), None, turn)
        return query, KVCache(jnp.concatenate([turned, key], axis=-1), value)

    def _attend_heads(
        self,
        query: jax.Array,
        memory: KVCache,
        mask: jax.Array | Visibility | None,
        bias: jax.Array | None,
    ) -> jax.Array:
        return super()._attend_heads(query, memory, mask, bias)[..., : self.latent.value_dim]
