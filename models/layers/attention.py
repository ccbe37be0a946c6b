"""Grouped-query attention: over the text itself, with or without a cache, or over another text.

Axis names: B batch, T query positions, S key positions, K key-value heads, G query heads per
key-value head, N = K·G query heads, H = head_dim, D model width.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.typing import ArrayLike, DTypeLike

from models.layers.cache import Cache, KVCache
from models.layers.dropout import Dropout
from models.layers.linear import Linear, fused_linear
from models.layers.masks import Visibility
from models.layers.norms import HeadsNorm, LayerNorm, RMSNorm
from models.layers.products import einsum_fp32
from models.layers.rotary import Turn, apply_rotary


class CacheScales(nnx.Module):
    """What keys and values are divided by in a cache of fewer bits, FP32 [1] each."""

    def __init__(self) -> None:
        self.key = nnx.Param(jnp.ones(1), axes=("scale",))
        self.value = nnx.Param(jnp.ones(1), axes=("scale",))


HeadNorm = RMSNorm | LayerNorm | HeadsNorm

CacheType = TypeVar("CacheType", bound=Cache | None)


STATISTICS = "attention_statistics"
"""Name of what is worth keeping of attention for its backward pass: all that has no S axis."""


class AttentionCall(NamedTuple):
    """How queries look at keys: with scores cap(scale · query · key + bias).

    Attributes:
      mask: [T, S], [B, T, S] or [B, 1, S], True where a query may look; None = everywhere.
      bias: [N, T, S] or [B, N, T, S], which is added to the scores.
      scale: 1 / sqrt(H) unless given.
      softcap: cap(x) = softcap · tanh(x / softcap); None = x.
      sinks: [N], scores of one more key of each head, whose value is zero (Xiao et al., "Attention
        Sinks", 2023).
      dropout: that of the softmax, drawn for [B, T, N, S].
    """

    mask: jax.Array | Visibility | None = None
    bias: jax.Array | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: jax.Array | None = None
    dropout: Dropout | None = None

    def factor(self, head_dim: int) -> float:
        """The scale of heads of that width."""
        return head_dim**-0.5 if self.scale is None else self.scale


Attend = Callable[[jax.Array, jax.Array, jax.Array, AttentionCall], jax.Array]
"""`dot_product_attention`, or the same where several cores share the positions."""


def dot_product_attention(
    query: jax.Array, keys: jax.Array, values: jax.Array, call: AttentionCall
) -> jax.Array:
    """softmax(scores) · values, the softmax in FP32: query [B, T, N, H], keys [B, S, K, H], values
    [B, S, K, V] -> [B, T, N, V]. Query head n looks at key-value head n // G."""
    mask, bias, _, softcap, sinks, dropout = call
    batch, length, num_heads, head_dim = query.shape
    num_keys, num_kv_heads = keys.shape[1:3]
    # Batch axes first, and the G queries of one key side by side, make plain batched matmuls.
    grouped = query.reshape(batch, length, num_kv_heads, -1, head_dim).transpose(0, 2, 3, 1, 4)
    grouped = grouped.reshape(batch, num_kv_heads, -1, head_dim)  # [B, K, G·T, H]
    scores = einsum_fp32("bkqh,bskh->bkqs", grouped, keys)  # [B, K, G·T, S]
    scores = scores * call.factor(head_dim)
    if bias is not None:
        bias = jnp.broadcast_to(bias, (batch, num_heads, length, num_keys))
        scores = scores + bias.reshape(batch, num_kv_heads, -1, num_keys)
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    seen = mask.mask(length) if isinstance(mask, Visibility) else mask
    if seen is not None:
        seen = jnp.broadcast_to(seen, (*seen.shape[:-2], length, num_keys))
        groups = num_heads // num_kv_heads
        seen = jnp.tile(seen, (*(1,) * (seen.ndim - 2), groups, 1))  # [(B,) G·T, S]
        seen = seen if seen.ndim == 2 else seen[:, None]
        scores = jnp.where(seen, scores, jnp.finfo(jnp.float32).min)
    largest = jnp.max(scores, axis=-1, keepdims=True)
    if sinks is not None:
        by_row = jnp.repeat(sinks.astype(jnp.float32).reshape(num_kv_heads, -1), length, axis=1)
        largest = jnp.maximum(largest, by_row[..., None])  # [B, K, G·T, 1]
    largest = checkpoint_name(jax.lax.stop_gradient(largest), STATISTICS)
    weights = jnp.exp(scores - largest)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    if sinks is not None:
        total = total + jnp.exp(by_row[..., None] - largest)
    if dropout is not None:
        by_head = weights.reshape(batch, num_heads, length, num_keys)
        weights = dropout.drop(by_head, (0, 2, 1, 3)).reshape(weights.shape)
    # Dividing by the sum after the product touches H numbers per query instead of S.
    attended = einsum_fp32("bkqs,bskh->bkqh", weights.astype(values.dtype), values)
    attended = checkpoint_name(attended, STATISTICS)
    attended = attended / checkpoint_name(total, STATISTICS)
    attended = attended.reshape(batch, num_kv_heads, -1, length, values.shape[-1])
    attended = attended.transpose(0, 3, 1, 2, 4).reshape(*query.shape[:-1], -1)
    return attended.astype(query.dtype)


class Attention(nnx.Module):
    """`num_heads` query heads that share `num_kv_heads` keys and values.

    Ainslie et al., "GQA", 2023. Query head n uses key-value head n // (num_heads / num_kv_heads).
    `bias` is of queries, keys and values, unless `key_bias` says otherwise of the keys; so is
    `stddev`, unless `query_stddev` says otherwise of the queries.
    Queries and keys pass a norm before they turn if `head_norm` makes one, of the axis of heads and
    its size. Calling the module is self-attention; `memory` and `attend` are attention over another
    text, whose vectors are `memory_dim` wide; those that values are made of can be `value_dim`
    wide. `mix`, `dot_product_attention` at first, is what looks at keys, and `rotate`,
    `apply_rotary` at first, turns heads. `fused`, False at first, lets self-attention make queries,
    keys and values by one product. `axes` are what the axes of query heads and of key-value heads
    are called. With `has_sinks` each query head has a score of one more key, whose value is zero.
    `cache_scales`, None at first, are for caches of fewer bits; attention itself does not look at
    them. `dropout`, None at first, is that of the softmax.
    """

    mix: Attend
    rotate: Callable[[jax.Array, Turn], jax.Array]
    fused: bool
    cache_scales: CacheScales | None
    sinks: nnx.Param[jax.Array] | None
    dropout: Dropout | None

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        memory_dim: int | None = None,
        value_dim: int | None = None,
        bias: bool = False,
        key_bias: bool | None = None,
        out_bias: bool = False,
        head_norm: Callable[[Mapping[str, int]], HeadNorm] | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        has_sinks: bool = False,
        axes: tuple[str, str] = ("heads", "kv_heads"),
        stddev: float,
        query_stddev: float | None = None,
        out_stddev: float,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:

        def project(
            in_dim: int, heads: dict[str, int], bias: bool, stddev: float = stddev
        ) -> Linear:
            return Linear(
                {"dim": in_dim},
                {**heads, "head_dim": head_dim},
                bias=bias,
                stddev=stddev,
                param_dtype=param_dtype,
                rngs=rngs,
            )

        self.mix, self.rotate, self.fused = dot_product_attention, apply_rotary, False
        self.cache_scales, self.dropout = nnx.data(None), nnx.data(None)
        self.scale, self.softcap = scale, softcap
        heads, kv_heads = {axes[0]: num_heads}, {axes[1]: num_kv_heads}
        self.query = project(dim, heads, bias, query_stddev or stddev)
        self.key = project(memory_dim or dim, kv_heads, bias if key_bias is None else key_bias)
        self.value = project(value_dim or memory_dim or dim, kv_heads, bias)
        self.output = Linear(
            {**heads, "head_dim": head_dim},
            {"dim": dim},
            bias=out_bias,
            stddev=out_stddev,
            param_dtype=param_dtype,
            rngs=rngs,
        )
        self.sinks = nnx.data(None)
        if has_sinks:
            scores = stddev * jax.random.normal(rngs.params(), (num_heads,), param_dtype)
            self.sinks = nnx.data(nnx.Param(scores, axes=(axes[0],)))
        self.query_norm = None if head_norm is None else head_norm(heads)
        self.key_norm = None if head_norm is None else head_norm(kv_heads)

    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array | Visibility | None = None,
        *,
        turn: Turn | None = None,
        bias: jax.Array | None = None,
    ) -> jax.Array:
        """The attention of x [B, T, D] to itself, [B, T, D], as `extend` without a cache."""
        return self.extend(x, mask, turn=turn, cache=None, bias=bias)[0]

    def extend(
        self,
        x: jax.Array,
        mask: jax.Array | Visibility | None,
        *,
        turn: Turn | None = None,
        temperature: jax.Array | None = None,
        cache: CacheType,
        start: ArrayLike = 0,
        bias: jax.Array | None = None,
    ) -> tuple[jax.Array, CacheType]:
        """x [B, T, D], mask and bias as in `AttentionCall` -> ([B, T, D], the updated cache).
        Without a turn, positions do not matter. Queries are multiplied by temperature [T] or
        [B, T], if there is any.

        Without a cache S = T; with one, x stands in slots start … start + T - 1.
        """
        query, written = self._heads(x, turn)
        if temperature is not None:
            query = (query * temperature[..., None, None]).astype(query.dtype)
        if cache is not None:
            cache = cache.write(*written, start)
            written = cache.read(written.values.dtype)
        return self._mix(query, written, mask, bias), cache

    def _heads(self, x: jax.Array, turn: Turn | None) -> tuple[jax.Array, KVCache]:
        """Queries, keys and values of x [B, T, D] as they look at each other."""
        if self.fused:
            query, key, value = fused_linear(x, (self.query, self.key, self.value))
        else:
            query, key, value = self.query(x), self.key(x), self.value(x)
        query = self._prepare(query, self.query_norm, turn)
        return query, KVCache(self._prepare(key, self.key_norm, turn), value)

    def memory(self, context: jax.Array, turn: Turn | None = None) -> KVCache:
        """Keys and values of context [B, S, memory_dim]."""
        return KVCache(self._prepare(self.key(context), self.key_norm, turn), self.value(context))

    def attend(
        self,
        x: jax.Array,
        memory: KVCache,
        mask: jax.Array | None,
        *,
        turn: Turn | None = None,
        bias: jax.Array | None = None,
        beside: KVCache | None = None,
        share: ArrayLike = 1.0,
    ) -> jax.Array:
        """x [B, T, D] looks at what `memory` made of another text -> [B, T, D]. What it sees
        `beside` that, with a softmax of its own, is multiplied by `share` and added."""
        query = self._prepare(self.query(x), self.query_norm, turn)
        if beside is None:
            return self._mix(query, memory, mask, bias)
        seen = self._attend_heads(query, memory, mask, bias)
        more = self._attend_heads(query, beside, None, None)
        return self.output((seen + share * more).astype(seen.dtype))

    def _prepare(self, heads: jax.Array, norm: HeadNorm | None, turn: Turn | None) -> jax.Array:
        heads = heads if norm is None else norm(heads)
        return heads if turn is None else self.rotate(heads, turn)

    def _mix(
        self,
        query: jax.Array,
        memory: KVCache,
        mask: jax.Array | Visibility | None,
        bias: jax.Array | None,
    ) -> jax.Array:
        return self.output(self._attend_heads(query, memory, mask, bias))

    def _attend_heads(
        self,
        query: jax.Array,
        memory: KVCache,
        mask: jax.Array | Visibility | None,
        bias: jax.Array | None,
    ) -> jax.Array:
        """What every head sees, [B, T, N, H]."""
        sinks = None if self.sinks is None else self.sinks[...]
        call = AttentionCall(mask, bias, self.scale, self.softcap, sinks, self.dropout)
        return self.mix(query, *memory, call)


def add_cache_scales(model: nnx.Module) -> None:
    """Gives all attention of a model scales for caches of fewer bits."""
    for _, module in nnx.iter_modules(model):
        if isinstance(module, Attention):
            module.cache_scales = CacheScales()
