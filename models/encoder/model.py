"""The encoder of BERT (Devlin et al., 2019) and its relatives: post-norm blocks of bidirectional
attention and a feed-forward block. What the families have beyond it is switched by the config.

Axis names: B texts, C choices, T tokens, D model width.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.encoder.bottleneck import BottleneckBlock
from models.encoder.config import EncoderConfig
from models.encoder.contacts import Contacts
from models.encoder.disentangled import DisentangledAttention, DistanceVectors
from models.encoder.grouped import GroupedMLP
from models.encoder.ngrams import NGramConvolution
from models.encoder.span import SpanAttention
from models.errors import InputError
from models.layers.attention import Attention
from models.layers.blocks import residual
from models.layers.embedding import Embedding, check_length
from models.layers.factory import LayerFactory
from models.layers.masks import text_mask
from models.layers.norms import Affine, LayerNorm
from models.layers.relative import RelativeBias
from models.layers.rotary import Turn, turn
from models.layers.text_heads import TextHead
from models.layers.text_reader import TextReader
from models.observe import observe

RELATIVE_DISTANCE = 128  # MPNet: farther tokens share a bucket
DROPPED_IN_TRAINING = 0.15 * 0.8  # ESM: the part of all tokens that are masked while it learns


class Embeddings(nnx.Module):
    """norm(word + position + type), projected to the width of the blocks if it differs; with or
    without the norm."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs) -> None:
        # Not split by vocabulary: RoBERTa has 50,265 tokens, which few meshes divide.
        # Projected words are what position and type are added to, if they are trigrams.
        width = config.dim if config.trigrams else config.embedding_dim
        make = LayerFactory.of(config, rngs)

        def table(size: int, dim: int = width) -> Embedding:
            return make.embedding(size, dim, "tokens")

        self.config = config
        self.word = table(config.vocab_size, config.embedding_dim)
        self.position = table(config.num_positions) if config.has_position_table else None
        self.type = table(config.type_vocab_size) if config.type_vocab_size else None
        self.language = table(config.languages) if config.languages else None
        self.norm = _embedding_norm(config, width)
        joined = (3 if config.trigrams else 1) * config.embedding_dim
        self.project = (
            make.linear(joined, config.dim, axes=("features", "dim"))
            if config.embedding_projection
            else None
        )

    def __call__(
        self,
        tokens: jax.Array,
        types: jax.Array | None,
        places: jax.Array | None = None,
        real: jax.Array | None = None,
        segments: jax.Array | None = None,
        languages: jax.Array | None = None,
    ) -> jax.Array:
        """tokens, types, places and languages [B, T] -> [B, T, D]; without types all are 0, without
        places a row is one text, of which real [B, T] is False at padding, and without languages
        there are none; segments as in `Encoder`.

        Raises InputError if T is too long.
        """
        check_length(tokens.shape[1], self.config.max_seq_len)
        dtype = self.config.dtype
        x = self._words(tokens, real)
        if self.config.trigrams and self.project is not None:
            x = self.project(_trigrams(x, segments))
        if self.type is not None:
            x = x + self.type(jnp.zeros_like(tokens) if types is None else types, dtype)
        if self.position is not None:
            x = x + self.position(self._positions(tokens, places), dtype)
        if self.language is not None and languages is not None:
            x = x + self.language(languages, dtype)
        x = x if self.norm is None else self.norm(x)
        return x if self.project is None or self.config.trigrams else self.project(x)

    def _words(self, tokens: jax.Array, real: jax.Array | None) -> jax.Array:
        config = self.config
        x = self.word(tokens, config.dtype)
        if config.dropped_token is None:
            return x
        dropped = tokens == config.dropped_token
        length = tokens.shape[1] if real is None else jnp.sum(real, axis=1)
        kept = 1 - jnp.sum(dropped, axis=1) / length
        scale = jnp.where(dropped, 0, (1 - DROPPED_IN_TRAINING) / kept[:, None])
        return (x * scale[..., None]).astype(x.dtype)

    def _positions(self, tokens: jax.Array, places: jax.Array | None) -> jax.Array:
        pad = self.config.position_pad
        if places is not None:
            return places if pad is None else places + pad + 1
        if pad is None:
            return jnp.arange(tokens.shape[1])[None]
        is_text = (tokens != pad).astype(jnp.int32)
        return jnp.cumsum(is_text, axis=1) * is_text + pad


def _embedding_norm(config: EncoderConfig, width: int) -> LayerNorm | Affine | None:
    if not config.embedding_norm:
        return None
    if config.bottleneck is not None:
        return Affine(width, param_dtype=config.param_dtype)
    return LayerNorm(width, eps=config.norm_eps, param_dtype=config.param_dtype)


def _trigrams(x: jax.Array, segments: jax.Array | None) -> jax.Array:
    """The vectors after, at and before every token side by side, [B, T, E] -> [B, T, 3E]; zero
    beyond the ends of a text."""
    same = jnp.ones(x.shape[:2], bool)[:, 1:]
    if segments is not None:
        same = segments[:, 1:] == segments[:, :-1]
    joined = same[..., None].astype(x.dtype)
    after = jnp.pad(x[:, 1:] * joined, ((0, 0), (0, 1), (0, 0)))
    before = jnp.pad(x[:, :-1] * joined, ((0, 0), (1, 0), (0, 0)))
    return jnp.concatenate([after, x, before], axis=-1)


def _attention(config: EncoderConfig, rngs: nnx.Rngs) -> Attention:
    make = LayerFactory.of(config, rngs)
    if config.disentangled is not None:
        return DisentangledAttention(config.disentangled, config.dim, config.num_heads, make)
    if config.span is not None:
        return SpanAttention(config.span, config.dim, make)
    return config.block.attention(rngs)


class Block(nnx.Module):
    """norm(x + attention(x)), then norm(x + mlp(x)); or x + attention(norm(x)), then
    x + mlp(norm(x))."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs) -> None:
        shape = config.block
        self.pre_norm = config.pre_norm
        self.attention = _attention(config, rngs)
        self.attention_norm = shape.norm()
        self.mlp = (
            shape.mlp(rngs)
            if config.mlp_groups == 1
            else GroupedMLP(shape, config.mlp_groups, rngs=rngs)
        )
        self.mlp_norm = shape.norm()

    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array | None,
        relative: jax.Array | None,
        turn: Turn | None,
    ) -> jax.Array:
        """x [B, T, D]; `relative` is a bias of the scores or, of disentangled attention, what its
        vectors of distances are."""

        def look(x: jax.Array) -> jax.Array:
            if isinstance(self.attention, DisentangledAttention):
                assert relative is not None
                return self.attention.look(x, mask, relative)
            if isinstance(self.attention, SpanAttention):
                return self.attention.look(x, mask)
            return self.attention(x, mask, bias=relative, turn=turn)

        x = residual(x, look, self.attention_norm, pre_norm=self.pre_norm)
        return residual(x, self.mlp, self.mlp_norm, pre_norm=self.pre_norm)


def _block(config: EncoderConfig, rngs: nnx.Rngs) -> Block | BottleneckBlock:
    if config.bottleneck is None:
        return Block(config, rngs=rngs)
    return BottleneckBlock(config.block, config.bottleneck, rngs=rngs)


class Encoder(TextReader):
    """Embeddings, blocks, and what they know of distances."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.embeddings = Embeddings(config, rngs=rngs)
        self.blocks = nnx.List([_block(config, rngs) for _ in range(config.num_blocks)])
        make, eps = LayerFactory.of(config, rngs), config.norm_eps
        self.norm = make.layer_norm(config.dim, eps) if config.last_norm else None
        self.ngrams = (
            None
            if config.ngrams is None
            else NGramConvolution(config.ngrams, config.dim, make, norm_eps=eps)
        )
        self.relative = _relative(config, make)
        maps = config.num_layers * config.num_heads
        self.contact_head = Contacts(maps, make) if config.contacts else None
        self.head = TextHead(config, rngs=rngs)

    @property
    def words(self) -> Embedding:
        return self.embeddings.word

    def encode(
        self,
        tokens: jax.Array,
        real: jax.Array | None = None,
        types: jax.Array | None = None,
        segments: jax.Array | None = None,
        positions: jax.Array | None = None,
        languages: jax.Array | None = None,
    ) -> jax.Array:
        """See `TextReader`: the last block's output, normed if the config says so; languages
        [B, T] are the numbers of those that tokens belong to."""
        if segments is not None and (self.config.span or self.config.ngrams):
            raise InputError(
                "this model does not support segments, because its convolutions would mix "
                "neighbouring texts. Give each text its own row."
            )
        x = self.embeddings(tokens, types, positions, real, segments, languages)
        slots = jnp.arange(tokens.shape[1])
        mask = text_mask(real, segments)
        relative = self._relative(slots)
        rotary, places = self.config.rotary, slots if positions is None else positions
        turned = None if rotary is None else turn(places, self.config.head_dim, rotary)
        order = self.blocks if self.stacks else [self.blocks[n] for n in self.config.order]
        for number, block in enumerate(order):
            before, x = x, block(x, mask, relative, turned)
            if self.ngrams is not None and number == 0:
                x = self.ngrams(before, x, real)
        return x if self.norm is None else self.norm(x)

    @property
    def stacks(self) -> bool:
        """Whether blocks may run as one stack: each runs once, with nothing between them."""
        return self.config.num_groups is None and self.config.ngrams is None

    def contacts(self, tokens: jax.Array, real: jax.Array | None = None) -> jax.Array:
        """The chances [B, T - 2, T - 2] that residues of proteins [B, T] touch each other, FP32;
        real [B, T] is False at padding. Raises InputError for models that cannot tell."""
        if self.contact_head is None:
            raise InputError("this model has no contact prediction head, unlike ESM models")
        inside = observe(self, tokens, real, call="encode")
        heads = self.config.num_heads
        maps = jnp.concatenate([map[:, :heads] for map in inside.attentions.values()], axis=1)
        return self.contact_head(maps, tokens, real)

    def _relative(self, slots: jax.Array) -> jax.Array | None:
        if isinstance(self.relative, DistanceVectors):
            return self.relative(len(slots), self.config.dtype)
        return None if self.relative is None else self.relative(slots, slots)


def _relative(config: EncoderConfig, make: LayerFactory) -> RelativeBias | DistanceVectors | None:
    """What blocks know of how far tokens are apart."""
    if config.disentangled is not None:
        return DistanceVectors(config.disentangled, config.dim, make, norm_eps=config.norm_eps)
    if not config.relative_buckets:
        return None
    return RelativeBias(
        config.num_heads,
        make,
        num_buckets=config.relative_buckets,
        max_distance=RELATIVE_DISTANCE,
        bidirectional=True,
    )
