"""The decoder of Llama (Touvron et al., 2023) and its relatives: pre-norm blocks of attention and
a feed-forward block. What the families have beyond it is switched by the config.

Axis names: B batch, T positions, S cache slots, D model width, V vocabulary.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike, DTypeLike

from models.decoder.cache_groups import CacheGroups
from models.decoder.config import DecoderConfig
from models.errors import InputError
from models.layers.attention import Attention, CacheType
from models.layers.cache import BlockCache, KVCache, StackedCaches
from models.layers.embedding import check_length
from models.layers.factory import LayerFactory
from models.layers.latent import LatentAttention
from models.layers.masks import Chunks, Reach, Visibility, causal_mask, segment_mask
from models.layers.mlp import MLP, GatedMLP
from models.layers.moe import MoE
from models.layers.norms import (
    HeadsNorm,
    LayerNorm,
    RMSNorm,
    rms_normalised_jointly,
    standardised,
)
from models.layers.paged_cache import (
    PagedCache,
    Pages,
    Rows,
    StackedPagedCaches,
    last_outputs,
    seen,
)
from models.layers.rotary import Rotary, Turn, turn
from models.layers.temperature import Temperature
from models.parallel.context import ContextParallel
from models.parallel.paged_split import PagedSplit, SharedCache
from models.parallel.tensor import hide_fillings


class Positions(NamedTuple):
    """The inputs of layers that depend on positions: masks and turns have one entry per kind of
    layer."""

    masks: Mapping[Reach, jax.Array | Visibility]  # by window
    turns: Mapping[Rotary, Turn]
    places: jax.Array  # of tokens in their texts, [T] or [B, T]

    def temperature(self, of_layer: Temperature | None) -> jax.Array | None:
        """What a layer's queries are multiplied by, [T] or [B, T]."""
        return None if of_layer is None else of_layer.factors(self.places)


class Inserted(NamedTuple):
    """Vectors that stand in the place of tokens [R, T], such as those of images."""

    there: jax.Array  # bool [R, T]: where they stand
    vectors: jax.Array  # [R, T, D]
    units: jax.Array | None = None  # int32 [R, T]: all of a unit see each other; below 0: no unit

    def same_unit(self, keys: jax.Array, starts: jax.Array) -> jax.Array | bool:
        """mask [R, T, S]: whether keys at positions [S] or [R, S] are of a query's own unit. Rows
        begin at positions `starts` [R], and units do not reach beyond a row."""
        if self.units is None:
            return False
        index, length = keys - starts[:, None], self.units.shape[1]
        of_keys = jnp.take_along_axis(self.units, jnp.clip(index, 0, length - 1), axis=1)
        of_keys = jnp.where((index >= 0) & (index < length), of_keys, -1)
        of_queries = self.units[:, :, None]
        return (of_queries == of_keys[:, None, :]) & (of_queries >= 0)


Norm = RMSNorm | LayerNorm | HeadsNorm


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); with a parallel residual
    x + attention(norm(x)) + mlp(norm(x))."""

    attention_norm: Callable[[jax.Array], jax.Array]
    mlp_norm: Callable[[jax.Array], jax.Array] | None

    def __init__(self, config: DecoderConfig, layer: int, *, rngs: nnx.Rngs) -> None:
        # Every block adds twice to the residual stream; this keeps the sum's variance at one
        # block's (GPT-2, Radford et al., 2019).
        stddev = config.initializer_range
        out_stddev = stddev / (2 * config.num_layers) ** 0.5
        self.window, self.rotary = config.window(layer), config.layer_rotary(layer)
        self.temperature = config.layer_temperature(layer)
        self.residual_multiplier = config.residual_multiplier
        self.parallel_residual = config.parallel_residual
        self.attention_norm = _norm(config) if config.pre_norms else _identity
        self.attention = _attention(config, layer, stddev, out_stddev, rngs)
        self.mlp_norm = _norm(config) if config.pre_norms else _identity
        if config.shared_norm:
            self.mlp_norm = None
        self.mlp = _feed_forward(config, layer, out_stddev, LayerFactory.of(config, rngs))
        self.attention_out_norm = _norm(config) if config.sandwich_norms else None
        self.mlp_out_norm = _norm(config) if config.sandwich_norms else None

    def __call__(
        self, x: jax.Array, positions: Positions, cache: CacheType, start: ArrayLike
    ) -> tuple[jax.Array, CacheType]:
        normed = self.attention_norm(x)
        attended, cache = self.attention.extend(
            normed,
            positions.masks[self.window],
            turn=None if self.rotary is None else positions.turns[self.rotary],
            temperature=positions.temperature(self.temperature),
            cache=cache,
            start=start,
        )
        after = self._add(x, attended, self.attention_out_norm)
        if self.mlp_norm is not None:
            normed = self.mlp_norm(x if self.parallel_residual else after)
        return self._add(after, self.mlp(normed), self.mlp_out_norm), cache

    @property
    def cache_scales(self) -> tuple[jax.Array, jax.Array] | None:
        """The scales of keys and values in a cache of fewer bits, FP32 [1] each; None = 1."""
        scales = self.attention.cache_scales
        return None if scales is None else (scales.key[...], scales.value[...])

    def _add(self, x: jax.Array, y: jax.Array, norm: Norm | None) -> jax.Array:
        y = y if norm is None else norm(y)
        return x + _scale(y, self.residual_multiplier)


class Decoder(nnx.Module):
    """Tokens [B, T] to next-token logits [B, T, V] in FP32.

    With `context`, None at first, several cores share the positions of whole texts, which lie in
    its order. `vocabulary_axes`, () at first, are mesh axes whose cores have the logits of a part
    of the vocabulary each, and `cross_entropy`, None at first, computes losses of whole ones. With
    `cache_split`, None at first, they have a part of paged caches
    each. `cache_groups`, one group at first, says which layers have a block table of their own.
    """

    context: ContextParallel | None
    cache_split: PagedSplit | None
    cache_groups: CacheGroups
    vocabulary_axes: tuple[str, ...]
    cross_entropy: Callable[[jax.Array, jax.Array], jax.Array] | None

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.context = self.cache_split = None
        self.cache_groups = CacheGroups.single(config.num_layers)
        self.vocabulary_axes, self.cross_entropy = (), None

        rows = config.vocab_size + config.vocab_padding
        make = LayerFactory.of(config, rngs)
        self.embedding = make.embedding(rows, config.dim)
        self.position_embedding = (
            make.embedding(config.max_seq_len, config.dim, "positions")
            if config.learned_positions
            else None
        )
        self.blocks = nnx.List([Block(config, i, rngs=rngs) for i in range(config.num_layers)])
        self.norm = _norm(config)
        self.head = None if config.tie_embeddings else make.embedding(rows, config.dim)
        self.head_bias = make.constant(vocab=rows) if config.head_bias else None

    def __call__(
        self,
        tokens: jax.Array,
        *,
        pad: jax.Array | None = None,
        segments: jax.Array | None = None,
        positions: jax.Array | None = None,
    ) -> jax.Array:
        """Logits [B, T, V] of whole sequences, tokens [B, T].

        The first pad[b] tokens of row b, pad [B], are not text: the others do not see them, and
        position 0 is the first that is. A row may hold several texts instead: a token sees those
        with its number in segments [B, T], and stands at its place in positions [B, T].
        Raises InputError if only one of the two is given, or `pad` besides.
        """
        where = self.positions(tokens.shape[1], pad=pad, segments=segments, positions=positions)
        return self.logits(self.run(self.embed(tokens, where), where))

    def positions(
        self,
        length: int,
        *,
        pad: jax.Array | None = None,
        segments: jax.Array | None = None,
        positions: jax.Array | None = None,
    ) -> Positions:
        """The positions of whole sequences, for `embed` and `run`; arguments and errors are a
        call's."""
        if self.position_embedding is not None:
            cores = 1 if self.context is None else self.context.size
            check_length(length * cores, self.config.max_seq_len)
        if segments is not None and positions is not None and pad is None:
            return self._packed_positions(segments, positions)
        if segments is not None or positions is not None:
            raise InputError("packed rows need both segments and positions, and cannot have pad")
        if self.context is None and pad is not None:
            return self._positions(length, length, 0, pad, length)
        if self.context is None:
            places = jnp.arange(length)
            masks = self._masks(None, places, length)
            return Positions(masks, self._turns(places, length), places)
        if pad is not None:
            raise InputError("pad is not supported with context parallelism")
        whole = length * self.context.size
        places = self.context.own_positions(whole)
        return Positions(self._masks(None, places, whole), self._turns(places, whole), places)

    def embed(self, tokens: jax.Array, where: Positions) -> jax.Array:
        """The residual stream [B, T, D] before the first block."""
        vectors = self.embedding(tokens, self.config.dtype)
        x = _scale(vectors, self.config.embedding_multiplier)
        if self.position_embedding is None:
            return x
        # Slots behind a text have no position of their own; what is there has no meaning.
        places = jnp.minimum(where.places, self.config.max_seq_len - 1)
        return x + self.position_embedding(places, self.config.dtype)

    def run(self, x: jax.Array, where: Positions) -> jax.Array:
        """All blocks: the residual stream [B, T, D] of whole sequences -> the same."""
        return self._blocks(x, [None] * len(self.blocks), where, 0)[0]

    def logits(self, x: jax.Array) -> jax.Array:
        """The logits FP32 [B, T, V] of the residual stream [B, T, D] behind the last block."""
        return self._logits(self.norm(x))

    def encode(self, tokens: jax.Array) -> jax.Array:
        """The normed output [B, T, D] of the last block for whole sequences [B, T]."""
        where = self.positions(tokens.shape[1])
        return self.norm(self.run(self.embed(tokens, where), where))

    def extend(
        self,
        tokens: jax.Array,
        cache: Sequence[BlockCache],
        start: ArrayLike,
        *,
        pad: jax.Array | None = None,
        last: ArrayLike | None = None,
    ) -> tuple[jax.Array, list[BlockCache]]:
        """Logits [B, T, V] of tokens [B, T] in slots start … start + T - 1, seeing what the cache
        holds before `start`; and the cache with these tokens added. `pad` is that of a call.

        With `last`, the index in `tokens` of the last one that is text, only its logits
        [B, 1, V] are computed. start + T must not exceed the cache's length.
        """
        where = self.cached_positions(tokens.shape[1], cache, start, pad=pad, last=last)
        return self.extend_vectors(self.embed(tokens, where), cache, start, where, last=last)

    def cached_positions(
        self,
        length: int,
        cache: Sequence[BlockCache],
        start: ArrayLike,
        *,
        pad: jax.Array | None = None,
        last: ArrayLike | None = None,
    ) -> Positions:
        """The positions of `length` tokens from slot `start` on, for `embed` and
        `extend_vectors`."""
        end = start + (length if last is None else last + 1)
        return self._positions(length, cache[0].keys.shape[-3], start, pad, end)

    def extend_vectors(
        self,
        x: jax.Array,
        cache: Sequence[BlockCache],
        start: ArrayLike,
        where: Positions,
        *,
        last: ArrayLike | None = None,
    ) -> tuple[jax.Array, list[BlockCache]]:
        """Extends the cache as `extend`, from the residual stream [B, T, D] before the first
        block."""
        x, extended = self._blocks(x, cache, where, start)
        if last is not None:
            x = jax.lax.dynamic_slice_in_dim(x, last, 1, axis=1)
        return self.logits(x), extended

    def init_cache(self, batch: int, length: int) -> list[BlockCache]:
        """An empty cache of `length` slots for `batch` sequences, one entry per block or stack of
        blocks."""
        config = self.config
        empty = KVCache.empty(batch, length, config.num_kv_heads, config.head_dim, config.dtype)
        if self._is_stack:
            return [StackedCaches.of(empty, config.num_layers)]
        return [empty for _ in range(config.num_layers)]

    @property
    def _is_stack(self) -> bool:
        """Whether all blocks run as one."""
        return len(self.blocks) < self.config.num_layers

    def extend_pages(
        self,
        tokens: jax.Array,
        pages: Sequence[Pages],
        rows: Rows,
        *,
        whole: bool = False,
        inserted: Inserted | None = None,
    ) -> tuple[jax.Array, list[Pages]]:
        """The normed output [R, D] after the last new token of every row, tokens [R, T], and the
        pages with the new tokens added; `logits_of` makes logits of it. With `whole` the outputs
        [R, T, D] after every token.

        Texts must not outgrow the first of `config.boundaries`.
        """
        block_size, length = pages[0].block_size, tokens.shape[1]
        slots = rows.positions(length)
        of_groups = self.cache_groups.rows(rows)
        views = {
            (group, reach): seen(of_groups[group], reach, length, block_size)
            for group, reach in zip(self.cache_groups.groups, self._reaches, strict=True)
        }
        masks = {}
        for (_, reach), view in views.items():
            keys = self._key_slots(view.rows.tables.shape[1], block_size)
            if view.rows.tables.shape != of_groups[0].tables.shape:
                keys = keys + view.start[:, None]
            masks[reach] = causal_mask(slots, keys, window=reach)
            if inserted is not None:
                own = inserted.same_unit(keys, rows.starts)
                near = not isinstance(reach, int) or keys[..., None, :] > slots[..., None] - reach
                masks[reach] |= own & near
        where = Positions(masks, self._turns(slots, None), slots)
        x, pages = self.embed(tokens, where), list(pages)
        if inserted is not None:
            x = jnp.where(inserted.there[..., None], inserted.vectors.astype(x.dtype), x)
        if self._is_stack:
            stack: Any = self.blocks[0]
            ((of_all, _),) = views.values()
            caches = StackedPagedCaches(pages[0], of_all, stack.block.cache_scales)
            x, caches = stack(x, where, caches, rows.starts)
            x = self.norm(x)
            return x if whole else last_outputs(x, rows), [caches.pages]
        for block, group, place in zip(
            self.blocks, self.cache_groups.groups, self.cache_groups.places, strict=True
        ):
            of_layer = views[group, block.window].rows
            cache = self._paged_cache(pages[place], of_layer, block.cache_scales)
            x, cache = block(x, where, cache, rows.starts)
            pages[place] = cache.pages
        x = self.norm(x)
        return x if whole else last_outputs(x, rows), pages

    def _key_slots(self, blocks: int, block_size: int) -> jax.Array:
        if self.cache_split is not None:
            return self.cache_split.key_slots(blocks, block_size)
        return jnp.arange(blocks * block_size)

    def _paged_cache(
        self, pages: Pages, rows: Rows, scales: tuple[jax.Array, jax.Array] | None
    ) -> SharedCache:
        if self.cache_split is not None:
            return self.cache_split.cache(pages, rows, scales)
        return PagedCache(pages, rows, scales)

    def logits_of(self, x: jax.Array) -> jax.Array:
        """Logits [R, V] in FP32 of normed outputs [R, D]."""
        return self._logits(x[:, None])[:, 0]

    def init_pages(
        self, blocks: int, block_size: int, dtype: DTypeLike | None = None
    ) -> list[Pages]:
        """Empty pages, one entry per layer of the largest cache group, or for all if they run as
        one; in the model's dtype unless told otherwise."""
        config = self.config
        shape = (blocks, block_size, config.num_kv_heads, config.head_dim)
        if self._is_stack:
            return [Pages.empty(*shape, dtype or config.dtype, stack=config.num_layers)]
        empty = Pages.empty(*shape, dtype or config.dtype)
        return [empty for _ in range(self.cache_groups.size)]

    def _blocks(
        self,
        x: jax.Array,
        caches: Sequence[BlockCache | None],
        positions: Positions,
        start: ArrayLike,
    ) -> tuple[jax.Array, list[Any]]:
        """The residual stream [B, T, D] behind the last block, and the caches."""
        blocks: Iterable[Callable[..., Any]] = self.blocks
        extended: list[Any] = []
        for block, cache in zip(blocks, caches, strict=True):
            x, cache = block(x, positions, cache, start)
            extended.append(cache)
        return x, extended

    def _positions(
        self, length: int, num_keys: int, start: ArrayLike, pad: jax.Array | None, end: ArrayLike
    ) -> Positions:
        """The positions of one text in each row, which ends at `end`."""
        slots, key_slots = start + jnp.arange(length), jnp.arange(num_keys)
        places = slots if pad is None else jnp.maximum(slots - pad[:, None], 0)
        text_length = end if pad is None else end - jnp.min(pad)
        masks = {w: causal_mask(slots, key_slots, window=w, pad=pad) for w in self._windows()}
        return Positions(masks, self._turns(places, text_length), places)

    def _packed_positions(self, segments: jax.Array, places: jax.Array) -> Positions:
        """The positions of several texts in each row."""
        same = segment_mask(segments)
        lengths = jnp.max(jnp.where(same, places[:, None, :] + 1, 0), axis=-1, keepdims=True)
        cores = 1 if self.context is None else self.context.size
        masks = self._masks(segments, places, segments.shape[1] * cores)
        return Positions(masks, self._turns(places, lengths), places)

    def _masks(
        self, segments: jax.Array | None, places: jax.Array, length: int
    ) -> dict[Reach, jax.Array | Visibility]:
        """What attention itself makes masks of whole texts of: they are never in memory for the
        backward pass, and cores that share a text make those of their parts."""
        return {
            window: Visibility(None, window.segments(places, segments, length))
            if isinstance(window, Chunks)
            else Visibility(window, segments)
            for window in self._windows()
        }

    @property
    def _reaches(self) -> list[Reach]:
        return [self.config.window(layer) for layer in range(self.config.num_layers)]

    def _windows(self) -> set[Reach]:
        return set(self._reaches)

    def _turns(self, places: jax.Array, text_length: ArrayLike | None) -> dict[Rotary, Turn]:
        of_layers = (self.config.layer_rotary(layer) for layer in range(self.config.num_layers))
        rotaries = {rotary for rotary in of_layers if rotary is not None}
        return {r: turn(places, self.config.turned_dim, r, text_length) for r in rotaries}

    def _logits(self, x: jax.Array) -> jax.Array:
        config = self.config
        head = self.embedding if self.head is None else self.head
        logits = head.logits(x)
        if self.head_bias is not None:
            logits = logits + self.head_bias[...].astype(jnp.float32)
        if config.logit_divisor != 1:
            logits = logits / config.logit_divisor
        if config.logit_softcap is not None:
            logits = config.logit_softcap * jnp.tanh(logits / config.logit_softcap)
        if self.vocabulary_axes:
            return hide_fillings(logits, config.vocab_size, self.vocabulary_axes)
        return logits[..., : config.vocab_size] if config.vocab_padding else logits


def _identity(x: jax.Array) -> jax.Array:
    """What stands in the place of a norm that a family leaves out."""
    return x


def _norm(config: DecoderConfig, axes: Mapping[str, int] | None = None) -> Norm:
    """Over the residual stream, unless `axes` names another axis and its size."""
    ((axis, size),) = (axes or {"residual": config.dim}).items()
    make: Callable[..., Norm] = partial(RMSNorm, offset=config.norm_offset)
    if config.layer_norm:
        make = partial(LayerNorm, bias=config.norm_bias)
    return make(size, eps=config.norm_eps, axis=axis, param_dtype=config.param_dtype)


def _head_norm(config: DecoderConfig, layer: int) -> Callable[[Mapping[str, int]], Norm] | None:
    """Makes norms of that layer's queries and keys from the axis of their heads, if they pass
    one."""
    eps, dtype = config.norm_eps, config.param_dtype
    if config.qk_norm == "shared":
        return lambda heads: _norm(config, {"head_dim": config.head_dim})
    if config.qk_norm == "own":
        return lambda heads: HeadsNorm(
            {**heads, "head_dim": config.head_dim}, standardised, eps=eps, param_dtype=dtype
        )
    if config.qk_norm == "jointly":
        # Heads that fill up a mesh are zeros, and do not count.
        share = config.dim / (config.num_heads * config.head_dim)
        normalise = partial(rms_normalised_jointly, share=share)
        return lambda heads: HeadsNorm(
            {**heads, "head_dim": config.head_dim}, normalise, eps=eps, param_dtype=dtype
        )
    if config.qk_unit_norm is not None and config.layer_rotary(layer) is not None:
        unit = partial(RMSNorm, eps=config.qk_unit_norm, has_scale=False, param_dtype=dtype)
        return lambda heads: unit(config.head_dim)
    return None


def _attention(
    config: DecoderConfig, layer: int, stddev: float, out_stddev: float, rngs: nnx.Rngs
) -> Attention:
    settings: dict[str, Any] = {
        "num_heads": config.num_heads,
        "head_dim": config.head_dim,
        "bias": config.attention_bias,
        "scale": config.layer_scale(layer),
        "stddev": stddev,
        "out_stddev": out_stddev,
        "param_dtype": config.param_dtype,
        "rngs": rngs,
    }
    if config.latent is not None:
        return LatentAttention(config.dim, config.latent, **settings)
    return Attention(
        config.dim,
        num_kv_heads=config.num_kv_heads,
        out_bias=config.attention_out_bias,
        head_norm=_head_norm(config, layer),
        softcap=config.attention_softcap,
        has_sinks=config.attention_sinks,
        **settings,
    )


def _feed_forward(
    config: DecoderConfig, layer: int, out_stddev: float, make: LayerFactory
) -> GatedMLP | MLP | MoE:
    settings = {"act": config.act, "out_stddev": out_stddev, **make.weights}
    if config.experts is not None and layer not in config.dense_layers:
        return MoE(config.dim, config.experts, **settings)
    kind = GatedMLP if config.gated_mlp else MLP
    return kind(config.dim, config.hidden_dim, bias=config.mlp_bias, **settings)


def _scale(x: jax.Array, multiplier: float) -> jax.Array:
    """The multiplier is rounded to the dtype of x first, as transformers does."""
    return x if multiplier == 1 else x * jnp.asarray(multiplier, x.dtype)
