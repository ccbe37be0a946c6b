"""Wu et al., "CvT: Introducing Convolutions to Vision Transformers", 2021.

Axis names: B batch, H rows and W columns of tokens, T tokens, C width of a stage, L labels.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.cvt.config import CvtConfig
from models.errors import InputError
from models.layers.attention import Attention
from models.layers.cache import KVCache
from models.layers.classifier import classify, make_classifier
from models.layers.conv_norm import ConvNorm
from models.layers.convolution import Conv
from models.layers.feature_map import FeatureMap
from models.layers.mlp import MLP
from models.layers.norms import LayerNorm
from models.layers.pixels import check_pixels

_EPS = 1e-5  # of all norms, whatever config.json says


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); queries, keys and values are made of the
    tokens' neighbourhoods."""

    def __init__(self, config: CvtConfig, stage: int, *, rngs: nnx.Rngs) -> None:
        dim, stddev, dtype = config.dims[stage], config.initializer_range, config.param_dtype

        def convolution(stride: int, padding: int) -> ConvNorm:
            return ConvNorm(
                dim,
                dim,
                config.windows[stage],
                stride=stride,
                padding=padding,
                groups=dim,
                axes=("channels", "residual"),
                stddev=stddev,
                param_dtype=dtype,
                rngs=rngs,
            )

        self.attention_norm = LayerNorm(dim, eps=_EPS, param_dtype=dtype)
        self.query = convolution(config.query_strides[stage], config.query_paddings[stage])
        self.key = convolution(config.key_strides[stage], config.key_paddings[stage])
        self.value = convolution(config.key_strides[stage], config.key_paddings[stage])
        heads = config.num_heads[stage]
        self.attention = Attention(
            dim,
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=dim // heads,
            bias=config.qkv_biases[stage],
            out_bias=True,
            scale=dim**-0.5,  # of the whole width, not of a head
            stddev=stddev,
            out_stddev=stddev,
            param_dtype=dtype,
            rngs=rngs,
        )
        self.mlp_norm = LayerNorm(dim, eps=_EPS, param_dtype=dtype)
        self.mlp = MLP(
            dim,
            int(config.mlp_ratios[stage] * dim),
            act="gelu",
            stddev=stddev,
            out_stddev=stddev,
            param_dtype=dtype,
            rngs=rngs,
        )

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
        dim = config.dims[stage]
        self.patches = Conv(
            config.dims[stage - 1] if stage else config.num_channels,
            dim,
            (config.patch_sizes[stage],) * 2,
            stride=config.patch_strides[stage],
            padding=config.patch_paddings[stage],
            stddev=config.initializer_range,
            param_dtype=config.param_dtype,
            rngs=rngs,
        )
        self.patch_norm = LayerNorm(dim, eps=_EPS, param_dtype=config.param_dtype)
        token = config.initializer_range * jax.random.normal(
            rngs.params(), (1, 1, dim), config.param_dtype
        )
        self.class_token = (
            nnx.Param(token, axes=("batch", "tokens", "dim"))
            if config.class_tokens[stage]
            else None
        )
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
        width, labels = config.dims[-1], config.num_labels
        self.norm = (
            None if labels is None else LayerNorm(width, eps=_EPS, param_dtype=config.param_dtype)
        )
        self.classifier = make_classifier(
            width,
            labels,
            stddev=config.initializer_range,
            param_dtype=config.param_dtype,
            rngs=rngs,
        )

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
