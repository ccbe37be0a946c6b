"""Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", 2021.

Axis names: B batch, T tokens, D width of a tower, P width of the common space, H height, W width,
C channels.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from models.clip.config import CLIPConfig, TextConfig, Tower, VisionConfig
from models.errors import ConfigError
from models.layers.blocks import Block
from models.layers.embedding import check_length, in_front
from models.layers.factory import LayerFactory
from models.layers.linear import Linear
from models.layers.masks import causal_mask
from models.layers.pixels import check_pixels


class TextFeatures(NamedTuple):
    """The outputs of the text tower."""

    hidden: jax.Array  # [B, T, D] after the last norm
    penultimate: jax.Array  # [B, T, D] before the last block, not normed
    pooled: jax.Array  # [B, P] at the end token, projected; [B, D] without a projection


class ImageFeatures(NamedTuple):
    """The outputs of the vision tower."""

    hidden: jax.Array  # [B, T, D] after the last block
    pooled: jax.Array  # [B, P], the class token, normed and projected; [B, D] without a projection


class TextTower(nnx.Module):
    """Causal blocks over tokens."""

    def __init__(self, config: TextConfig, dtype: str, param_dtype: str, *, rngs: nnx.Rngs) -> None:
        tower = config.tower
        self.config, self.dtype = config, dtype
        make = LayerFactory(tower.initializer_range, param_dtype, rngs)
        self.embedding = make.embedding(config.vocab_size, tower.dim)
        self.positions = make.table(tokens=config.max_seq_len, dim=tower.dim)
        self.blocks = _blocks(tower, param_dtype, rngs)
        self.norm = tower.block(param_dtype).norm()

    def __call__(self, tokens: jax.Array) -> TextFeatures:
        """The features of tokens [B, T], not projected. Raises InputError if T is too long."""
        check_length(tokens.shape[1], self.config.max_seq_len)
        length = tokens.shape[1]
        x = self.embedding(tokens, self.dtype)
        x = penultimate = x + self.positions[:length].astype(x.dtype)
        mask = causal_mask(jnp.arange(length), jnp.arange(length))
        for block in self.blocks:
            x, penultimate = block(x, mask), x
        hidden = self.norm(x)
        end = self.config.end_token
        last = jnp.argmax(tokens if end is None else tokens == end, axis=1)
        pooled = jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]
        return TextFeatures(hidden, penultimate, pooled)


class VisionTower(nnx.Module):
    """Full blocks over a class token and the patches of an image."""

    def __init__(
        self, config: VisionConfig, dtype: str, param_dtype: str, *, rngs: nnx.Rngs
    ) -> None:
        tower = config.tower
        self.config, self.dtype = config, dtype
        make = LayerFactory(tower.initializer_range, param_dtype, rngs)
        size = config.patch_size
        self.patches = make.conv(config.num_channels, tower.dim, size, stride=size, bias=False)
        self.class_token = make.table(residual=tower.dim)
        self.positions = make.table(tokens=config.side**2 + 1, dim=tower.dim)
        self.in_norm = tower.block(param_dtype).norm()
        self.blocks = _blocks(tower, param_dtype, rngs)
        self.norm = tower.block(param_dtype).norm()

    def __call__(self, pixels: jax.Array) -> ImageFeatures:
        """The features of pixels [B, H, W, C], which have the config's size, not projected."""
        size = self.config.image_size
        check_pixels(pixels, (size, size), self.config.num_channels)
        patches = self.patches(pixels.astype(self.dtype))
        patches = patches.reshape(len(patches), -1, patches.shape[-1])
        x = in_front(patches, self.class_token) + self.positions[...].astype(patches.dtype)
        x = self.in_norm(x)
        for block in self.blocks:
            x = block(x)
        return ImageFeatures(x, self.norm(x[:, 0]))


class CLIP(nnx.Module):
    """The towers that the config has, and the projections into the common space."""

    def __init__(self, config: CLIPConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        dtypes = config.dtype, config.param_dtype
        text, vision, width = config.text, config.vision, config.projection_dim
        self.text = None if text is None else TextTower(text, *dtypes, rngs=rngs)
        self.vision = None if vision is None else VisionTower(vision, *dtypes, rngs=rngs)

        def projection(tower: Tower) -> Linear | None:
            if width is None:
                return None
            return Linear(
                {"dim": tower.dim},
                {"projection": width},
                stddev=tower.dim**-0.5,
                param_dtype=config.param_dtype,
                rngs=rngs,
            )

        self.text_projection = None if text is None else projection(text.tower)
        self.vision_projection = None if vision is None else projection(vision.tower)
        self.logit_scale = (
            nnx.Param(jnp.asarray(config.logit_scale, config.param_dtype), axes=())
            if text is not None and vision is not None
            else None
        )

    def __call__(self, tokens: jax.Array, pixels: jax.Array) -> jax.Array:
        """The similarity of every image and every text: logits [images, texts], FP32.

        tokens [texts, T], pixels [images, H, W, C].
        """
        return self.similarity(self.encode(tokens).pooled, self.features(pixels).pooled)

    def similarity(self, texts: jax.Array, images: jax.Array) -> jax.Array:
        """The similarity of pooled texts [texts, P] and pooled images [images, P]."""
        if self.logit_scale is None:
            raise _missing("text and vision towers")
        texts, images = _unit(texts), _unit(images)
        return jnp.exp(self.logit_scale[...].astype(jnp.float32)) * (images @ texts.T)

    def encode(self, tokens: jax.Array) -> TextFeatures:
        """The features of tokens [B, T]; tokens after the first end token do not matter."""
        if self.text is None:
            raise _missing("text tower")
        features = self.text(tokens)
        if self.text_projection is None:
            return features
        return features._replace(pooled=self.text_projection(features.pooled))

    def features(self, pixels: jax.Array) -> ImageFeatures:
        """The features of pixels [B, H, W, C], which have the config's size."""
        if self.vision is None:
            raise _missing("vision tower")
        features = self.vision(pixels)
        if self.vision_projection is None:
            return features
        return features._replace(pooled=self.vision_projection(features.pooled))


def _unit(x: jax.Array) -> jax.Array:
    """Vectors of length 1 along the last axis, FP32."""
    x = x.astype(jnp.float32)
    return x / jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True))


def _missing(what: str) -> ConfigError:
    return ConfigError(
        f"this model has no {what}: load the checkpoint of a CLIPModel, which has both towers"
    )


def _blocks(tower: Tower, param_dtype: str, rngs: nnx.Rngs) -> nnx.List[Block]:
    shape = tower.block(param_dtype)
    return nnx.List([Block(shape, rngs=rngs) for _ in range(tower.num_layers)])
