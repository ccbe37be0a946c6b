"""Wu et al., "CvT: Introducing Convolutions to Vision Transformers", 2021.

Axis names: B batch, H rows and W columns of tokens, T tokens, C width of a stage, L labels.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.cvt.config import NORM_EPS, CvtConfig
from models.errors import InputError
from models.layers.cache import KVCache
from models.layers.classifier import classify
from models.layers.conv_norm import ConvNorm
from models.layers.factory import LayerFactory
from models.layers.feature_map import FeatureMap
from models.layers.pixels import check_pixels


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); queries, keys and values are made of the
    tokens' neighbourhoods."""

    def __init__(self, config: CvtConfig, stage: int, *, rngs: nnx.Rngs) -> None:
        make, dim = LayerFactory.of(config, rngs), config.dims[stage]

        def convolution(stride: int, padding: int) -> ConvNorm:
            return make.conv_norm(
                dim,
                dim,
                config.windows[stage],
                stride=stride,
                padding=padding,
                groups=dim,
                axes=("channels", "residual"),
            )

        shape = config.block(stage)
        self.attention_norm = shape.norm()
        self.query = convolution(config.query_strides[stage], config.query_paddings[stage])
        self.key = convolution(config.key_strides[stage], config.key_paddings[stage])
        self.value = convolution(config.key_strides[stage], config.key_paddings[stage])
        self.attention = shape.attention(rngs, scale=dim**-0.5)  # of the whole width, not of a head
        self.mlp_norm = shape.norm()
        self.mlp = shape.mlp(rngs)

    def __call__(self, x: jax.Array, grid: tuple[int, int], *, train: bool) -> jax.Array:
        """x [B, T, C], whose last tokens are those of a grid [H, W] -> [B, T, C]."""
        y = self.attention_norm(x)
        batch, length, dim = y.shape
        first = length - grid[0] * grid[1]
        image = y[:, first:].reshape(batch, *grid, dim)

        def tokens(convolution: ConvNorm) -> jax.Array:
            places = convolution(image, train=train).reshape(batch, -1, dim)
            return jnp.concatenate([y[:, :first], places], axis=1) if first else places

        attention = self.attention
        memory = KVCache(attention.key(tokens(self.key)), attention.value(tokens(self.value)))
        x = x + attention.attend(tokens(self.query), memory, None)
        return x + self.mlp(self.mlp_norm(x))


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
        self.blocks = nnx.List(
            [Block(config, stage, rngs=rngs) for _ in range(config.depths[stage])]
        )

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
        if self.class_token is not None:
            token = self.class_token[...].astype(x.dtype)
            x = jnp.concatenate([jnp.tile(token, (batch, 1, 1)), x], axis=1)
        for block in self.blocks:
            x = block(x, (rows, columns), train=train)
        places = x[:, -rows * columns :].reshape(batch, rows, columns, dim)
        return places, None if self.class_token is None else x[:, 0]


class Cvt(nnx.Module):
    """Images to feature maps, and to logits if the config has labels."""

    def __init__(self, config: CvtConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        stages = range(len(config.depths))
        self.stages = nnx.List([Stage(config, stage, rngs=rngs) for stage in stages])
        make, width, labels = LayerFactory.of(config, rngs), config.dims[-1], config.num_labels
        self.norm = None if labels is None else make.layer_norm(width, NORM_EPS)
        self.classifier = make.classifier(width, labels)

    def __call__(self, pixels: jax.Array, *, train: bool = False) -> jax.Array:
        """Logits [B, L] of pixels [B, height, width, channels], FP32."""
        token = self.features(pixels, train=train).pooled
        return classify(self.classifier, token if self.norm is None else self.norm(token))

    def features(self, pixels: jax.Array, *, train: bool = False) -> FeatureMap:
        """The features of pixels [B, height, width, channels] of any size; the pooled ones are the
        class token.

        With `train`, batch norms use the statistics of the batch and move the running ones.
        """
        check_pixels(pixels, None, self.config.num_channels)
        x, token = pixels.astype(self.config.dtype), None
        for stage in self.stages:
            x, token = stage(x, train=train)
        assert token is not None
        return FeatureMap(x, token)
