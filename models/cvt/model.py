"""Wu et al., "CvT: Introducing Convolutions to Vision Transformers", 2021.

Axis names: B batch, H rows and W columns of tokens, T tokens, C width of a stage, L labels.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from models.cvt.config import NORM_EPS, CvtConfig
from models.errors import InputError
from models.layers.blocks import Block
from models.layers.cache import KVCache
from models.layers.conv_norm import ConvNorm
from models.layers.embedding import in_front
from models.layers.factory import LayerFactory
from models.layers.feature_map import FeatureMap
from models.layers.image_model import ImageModel


class ConvolvedBlock(Block):
    """A block whose queries, keys and values are made of the tokens' neighbourhoods."""

    def __init__(self, config: CvtConfig, stage: int, *, rngs: nnx.Rngs) -> None:
        # The scale is that of the whole width, not of a head.
        super().__init__(config.block(stage), rngs=rngs, scale=config.dims[stage] ** -0.5)
        make, dim, window = LayerFactory.of(config, rngs), config.dims[stage], config.windows[stage]
        convolution = partial(
            make.conv_norm, dim, dim, window, groups=dim, axes=("channels", "residual")
        )
        strides, paddings = config.key_strides[stage], config.key_paddings[stage]
        self.query = convolution(
            stride=config.query_strides[stage], padding=config.query_paddings[stage]
        )
        self.key = convolution(stride=strides, padding=paddings)
        self.value = convolution(stride=strides, padding=paddings)

    def attend(self, x: jax.Array, grid: tuple[int, int], *, train: bool) -> jax.Array:
        """The attention of x [B, T, C], whose last tokens are those of a grid [H, W]."""
        batch, length, dim = x.shape
        first = length - grid[0] * grid[1]
        image = x[:, first:].reshape(batch, *grid, dim)

        def tokens(convolution: ConvNorm) -> jax.Array:
            places = convolution(image, train=train).reshape(batch, -1, dim)
            return jnp.concatenate([x[:, :first], places], axis=1) if first else places

        attention = self.attention
        memory = KVCache(attention.key(tokens(self.key)), attention.value(tokens(self.value)))
        return attention.attend(tokens(self.query), memory, None)


class Stage(nnx.Module):
    """A convolution that makes tokens, a class token if there is one, and blocks."""

    def __init__(self, config: CvtConfig, stage: int, *, rngs: nnx.Rngs) -> None:
        make, dim = LayerFactory.of(config, rngs), config.dims[stage]
        self.patches = make.conv(
            config.dims[stage - 1] if stage else config.num_channels,
            dim,
            config.patch_sizes[stage],
            stride=config.patch_strides[stage],
            padding=config.patch_paddings[stage],
        )
        self.patch_norm = make.layer_norm(dim, NORM_EPS)
        has_token = config.class_tokens[stage]
        self.class_token = make.table(batch=1, tokens=1, dim=dim) if has_token else None
        blocks = (ConvolvedBlock(config, stage, rngs=rngs) for _ in range(config.depths[stage]))
        self.blocks = nnx.List(blocks)

    def __call__(self, x: jax.Array, *, train: bool) -> tuple[jax.Array, jax.Array | None]:
        """x [B, H, W, C] -> that of the next stage, and the class token [B, C]."""
        size = x.shape[1:3]
        x = self.patch_norm(self.patches(x))
        batch, rows, columns, dim = x.shape
        if not rows * columns:
            raise InputError(
                f"the images are too small: a stage turns {size[0]} x {size[1]} positions into "
                f"{rows} x {columns}. Use larger images."
            )
        x = x.reshape(batch, -1, dim)
        x = in_front(x, self.class_token)
        for block in self.blocks:
            x = block(x, (rows, columns), train=train)
        places = x[:, -rows * columns :].reshape(batch, rows, columns, dim)
        return places, None if self.class_token is None else x[:, 0]


class Cvt(ImageModel):
    """Images to feature maps, and to logits if the config has labels."""

    def __init__(self, config: CvtConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        stages = range(len(config.depths))
        self.stages = nnx.List([Stage(config, stage, rngs=rngs) for stage in stages])
        make, width, labels = LayerFactory.of(config, rngs), config.dims[-1], config.num_labels
        self.norm = None if labels is None else make.layer_norm(width, NORM_EPS)
        self.classifier = make.classifier(width, labels)

    def see(self, x: jax.Array, *, train: bool) -> FeatureMap:
        """See `ImageModel`; the pooled features are the class token."""
        token = None
        for stage in self.stages:
            x, token = stage(x, train=train)
        assert token is not None
        return FeatureMap(x, token)

    def labelled(self, pooled: jax.Array, *, train: bool) -> jax.Array:
        return super().labelled(pooled if self.norm is None else self.norm(pooled), train=train)
