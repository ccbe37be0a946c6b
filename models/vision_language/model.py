"""Language models that see images: Gemma 3 (Gemma team, 2025), and Idefics3 (Laurençon et al.,
"Building and better understanding vision-language models", 2024) with SmolVLM.

Axis names: B batch, T positions, S cache slots, I images of a text, H height, W width, C channels,
N tokens of all its images, D model width, V vocabulary; of servers R rows, P places of images.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike, DTypeLike

from models.decoder.model import Decoder, Inserted, Positions
from models.layers.cache import BlockCache
from models.layers.encoder_decoder import TargetPages
from models.layers.masks import Reach, Visibility, causal_mask
from models.layers.paged_cache import Pages, Rows
from models.vision_language.config import VisionLanguageConfig
from models.vision_language.vision import Connector, VisionTower


class SeenCache(NamedTuple):
    """The cache of a text with images."""

    layers: Sequence[BlockCache]
    images: jax.Array  # [B, N, D]
    used: jax.Array  # int32 [B]: tokens of images that the text has had


class ImagePlaces(NamedTuple):
    """Images that stay on the device while texts that see them grow: the tokens [P, N, D] of so
    many places."""

    vectors: jax.Array

    def put(self, places: jax.Array, vectors: jax.Array, lengths: jax.Array) -> "ImagePlaces":
        """The places with the tokens [B, n, D] of images in those int32 [B]. Their texts say how
        many there are, so that `lengths` are not needed."""
        return ImagePlaces(self.vectors.at[places, : vectors.shape[1]].set(vectors))

    def copied(self, begin: jax.Array, end: jax.Array) -> "ImagePlaces":
        """The places with the images of the place `begin` in the place `end`, too."""
        return ImagePlaces(self.vectors.at[end].set(self.vectors[begin]))


class VisionLanguage(nnx.Module):
    """Tokens [B, T] and pixels [B, I, H, W, C] to next-token logits [B, T, V] in FP32."""

    def __init__(self, config: VisionLanguageConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.vision = VisionTower(config.vision, config.dtype, config.param_dtype, rngs=rngs)
        self.connector = Connector(config, rngs=rngs)
        self.text = Decoder(config.decoder, rngs=rngs)

    def __call__(self, tokens: jax.Array, pixels: jax.Array) -> jax.Array:
        """Logits of whole texts; the tokens of images stand where `config.image_token` does."""
        places = jnp.arange(tokens.shape[1])
        is_image, vectors, _ = self._place_images(tokens, self.encode(pixels), None)
        where = self.text.positions(tokens.shape[1])
        where = self._whole_images(where, is_image, places, len(places), None)
        return self.text.logits(
            self.text.run(self._merge_images(tokens, is_image, vectors, where), where)
        )

    def encode(self, pixels: jax.Array) -> jax.Array:
        """The tokens [B, N, D] of images [B, I, H, W, C], one image after the other."""
        batch, images = pixels.shape[:2]
        tokens = self.connector(self.vision(pixels.reshape(-1, *pixels.shape[2:])))
        return tokens.reshape(batch, images * tokens.shape[1], -1)

    def init_cache(self, batch: int, length: int, *, pixels: jax.Array) -> SeenCache:
        """A cache of `length` slots for texts that see pixels [B, I, H, W, C]."""
        layers = self.text.init_cache(batch, length)
        return SeenCache(layers, self.encode(pixels), jnp.zeros(batch, jnp.int32))

    def extend(
        self,
        tokens: jax.Array,
        cache: SeenCache,
        start: ArrayLike,
        *,
        pad: jax.Array | None = None,
        last: ArrayLike | None = None,
    ) -> tuple[jax.Array, SeenCache]:
        """Logits and cache as of `Decoder.extend`; where a text has had all tokens of its images,
        the image token is a token like any other."""
        length = tokens.shape[1]
        is_image, vectors, used = self._place_images(tokens, cache.images, cache.used)
        where = self.text.cached_positions(length, cache.layers, start, pad=pad, last=last)
        if length > 1:
            slots, num_keys = start + jnp.arange(length), cache.layers[0].keys.shape[1]
            where = self._whole_images(where, is_image, slots, num_keys, pad)
        x = self._merge_images(tokens, is_image, vectors, where)
        logits, layers = self.text.extend_vectors(x, cache.layers, start, where, last=last)
        return logits, SeenCache(layers, cache.images, used)

    def read(self, source: jax.Array, length: jax.Array) -> jax.Array:
        """The tokens [1, N, D] of images whose rows of pixels [I · H, W · C] stand one below the
        other. What lies behind `length` rows belongs to no image of a text."""
        size = self.config.vision.image_size
        return self.encode(source.reshape(1, -1, size, size, self.config.vision.num_channels))

    def init_pages(
        self, blocks: int, block_size: int, dtype: DTypeLike | None = None
    ) -> list[Pages]:
        """Empty pages of texts; as `Decoder.init_pages`."""
        return self.text.init_pages(blocks, block_size, dtype)

    def init_sources(self, places: int, length: int) -> ImagePlaces:
        """Empty places, as many as asked for, of images of `length` rows of pixels in all."""
        tokens = length // self.config.vision.image_size * self.config.image_tokens
        return ImagePlaces(jnp.zeros((places, tokens, self.config.text.dim), self.config.dtype))

    def extend_pages(
        self, tokens: jax.Array, pages: TargetPages, rows: Rows, *, whole: bool = False
    ) -> tuple[jax.Array, TargetPages]:
        """The results of `Decoder.extend_pages` for texts that see the images in their places,
        `rows.places`. Token `vocab_size + n` stands for the n-th token of these images. Where an
        image sees itself whole, all of its tokens must be new ones of one call."""
        assert rows.places is not None
        numbers = tokens - self.config.vocab_size
        there = numbers >= 0
        images = pages.sources.vectors[rows.places]
        places = jnp.clip(numbers, 0, images.shape[1] - 1)
        vectors = jnp.take_along_axis(images, places[..., None], axis=1)
        units = jnp.where(there, numbers // self.config.image_tokens, -1)
        x, layers = self.text.extend_pages(
            jnp.where(there, 0, tokens),
            pages.layers,
            rows,
            whole=whole,
            inserted=Inserted(there, vectors, units if self.config.pooled else None),
        )
        return x, pages._replace(layers=layers)

    def logits_of(self, x: jax.Array) -> jax.Array:
        """Logits [R, V] in FP32 of outputs [R, D]."""
        return self.text.logits_of(x)

    def _place_images(
        self, tokens: jax.Array, images: jax.Array, used: jax.Array | None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Whether tokens [B, T] are those of images [B, N, D], the vectors [B, T, D] of these, and
        how many [B] have been used then."""
        before = 0 if used is None else used[:, None]
        is_image = tokens == self.config.image_token
        numbers = before + jnp.cumsum(is_image, axis=1) - 1
        is_image &= numbers < images.shape[1]
        places = jnp.clip(numbers, 0, images.shape[1] - 1)
        vectors = jnp.take_along_axis(images, places[..., None], axis=1)
        return is_image, vectors, jnp.sum(is_image, axis=1, dtype=jnp.int32) + jnp.ravel(before)

    def _merge_images(
        self, tokens: jax.Array, is_image: jax.Array, vectors: jax.Array, where: Positions
    ) -> jax.Array:
        """The residual stream [B, T, D] before the first block."""
        x = self.text.embed(jnp.where(is_image, 0, tokens), where)
        return jnp.where(is_image[..., None], vectors.astype(x.dtype), x)

    def _whole_images(
        self,
        where: Positions,
        is_image: jax.Array,
        slots: jax.Array,
        num_keys: int,
        pad: jax.Array | None,
    ) -> Positions:
        """Positions whose masks let every token of an image see the whole of it, where models do
        so; slots [T] are those of the tokens."""
        if not self.config.pooled:
            return where
        first = is_image & ~jnp.pad(is_image, ((0, 0), (1, 0)))[:, :-1]
        images = jnp.where(is_image, jnp.cumsum(first, axis=1), 0)  # numbers from 1 on
        keys = jnp.zeros((len(images), num_keys), images.dtype)
        keys = jax.lax.dynamic_update_slice_in_dim(keys, images, slots[0], axis=1)
        same = (images[:, :, None] == keys[:, None, :]) & is_image[:, :, None]
        key_slots = jnp.arange(num_keys)
        seen = same | causal_mask(slots, key_slots, pad=pad)
        masks: dict[Reach, jax.Array | Visibility] = {
            window: seen & (key_slots > slots[:, None] - window)
            if isinstance(window, int)
            else seen
            for window in where.masks
        }
        return where._replace(masks=masks)
