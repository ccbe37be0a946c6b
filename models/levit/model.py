"""Graham et al., "LeViT: a Vision Transformer in ConvNet's Clothing for Faster Inference", 2021.

Axis names: B batch, T tokens, C width of a stage, N heads, K width of a key, L labels.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.layers.attention import dot_product_attention
from models.layers.classifier import classify
from models.layers.factory import LayerFactory
from models.layers.feature_map import ImageFeatures, mean_of_places
from models.layers.pixels import check_pixels
from models.levit.config import (
    MLP_RATIO,
    NUM_CONVOLUTIONS,
    STAGES,
    STRIDE,
    VALUE_RATIO,
    LevitConfig,
)


class LinearNorm(nnx.Module):
    """norm(linear(x)): a linear map without bias and a batch norm."""

    def __init__(
        self,
        config: LevitConfig,
        sizes: tuple[int, int],
        axes: tuple[str, str] = ("dim", "hidden_dim"),
        *,
        rngs: nnx.Rngs,
    ) -> None:
        make = LayerFactory.of(config, rngs)
        self.linear = make.linear(*sizes, axes=axes, bias=False)
        self.norm = make.batch_norm(sizes[1], "residual" if axes[1] == "dim" else axes[1])

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        return self.norm(self.linear(x), train=train)


class Distances(nnx.Module):
    """A bias per head and distance of two tokens, whatever its sign; queries are `stride` apart."""

    def __init__(self, heads: int, grid: int, stride: int, *, dtype: str) -> None:
        self.grid, self.stride = grid, stride
        self.table = nnx.Param(jnp.zeros((heads, grid * grid), dtype), axes=("heads", "buckets"))

    def __call__(self) -> jax.Array:
        """[N, queries, keys], FP32."""
        keys = np.arange(self.grid)
        apart = np.abs(keys[:: self.stride, None] - keys)
        down, right = apart[:, None, :, None], apart[None, :, None, :]
        places = (down * self.grid + right).reshape(apart.shape[0] ** 2, -1)
        return self.table[...].astype(jnp.float32)[:, places]


class Attention(nnx.Module):
    """Self-attention, or with a stride that of every second token of both axes over all."""

    def __init__(self, config: LevitConfig, stage: int, *, shrinks: bool, rngs: nnx.Rngs) -> None:
        dim = config.dims[stage]
        self.key_dim = config.key_dims[0 if shrinks else stage]
        self.heads = config.shrinking_heads(stage) if shrinks else config.num_heads[stage]
        ratio = VALUE_RATIO if shrinks else config.value_ratios[stage]
        self.stride, self.grid = STRIDE if shrinks else 1, config.grid(stage)
        keys, values = self.heads * self.key_dim, self.heads * self.key_dim * ratio
        self.queries = LinearNorm(config, (dim, keys), rngs=rngs) if shrinks else None
        # What is made of all tokens: of each head first queries, if there are, keys and values.
        width = keys + values + (0 if shrinks else keys)
        self.fused = LinearNorm(config, (dim, width), rngs=rngs)
        out = config.dims[stage + 1 if shrinks else stage]
        self.projection = LinearNorm(config, (values, out), ("hidden_dim", "dim"), rngs=rngs)
        self.distances = Distances(self.heads, self.grid, self.stride, dtype=config.param_dtype)

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        batch, length, dim = x.shape
        fused = self.fused(x, train=train).reshape(batch, length, self.heads, -1)
        if self.queries is None:
            query, fused = fused[..., : self.key_dim], fused[..., self.key_dim :]
        else:
            image = x.reshape(batch, self.grid, self.grid, dim)
            every = image[:, :: self.stride, :: self.stride].reshape(batch, -1, dim)
            query = self.queries(every, train=train).reshape(batch, -1, self.heads, self.key_dim)
        key, value = fused[..., : self.key_dim], fused[..., self.key_dim :]
        mixed = dot_product_attention(query, key, value, None, bias=self.distances())
        mixed = mixed.reshape(batch, query.shape[1], -1)
        return self.projection(jax.nn.hard_swish(mixed), train=train)


class MLP(nnx.Module):
    """down(hard_swish(up(x)))."""

    def __init__(self, config: LevitConfig, dim: int, ratio: int, *, rngs: nnx.Rngs) -> None:
        self.up = LinearNorm(config, (dim, ratio * dim), rngs=rngs)
        self.down = LinearNorm(config, (ratio * dim, dim), ("hidden_dim", "dim"), rngs=rngs)

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        return self.down(jax.nn.hard_swish(self.up(x, train=train)), train=train)


class Residual(nnx.Module):
    """x + module(x)."""

    def __init__(self, module: Attention | MLP) -> None:
        self.module = module

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        return x + self.module(x, train=train)


class Head(nnx.Module):
    """A batch norm and a classifier."""

    def __init__(self, config: LevitConfig, labels: int, *, rngs: nnx.Rngs) -> None:
        make, width = LayerFactory.of(config, rngs), config.dims[-1]
        self.norm = make.batch_norm(width)
        self.linear = make.linear(width, labels, axes=("dim", "label"))

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        return self.linear(self.norm(x, train=train)).astype(jnp.float32)


class Levit(nnx.Module):
    """Images to features, and to logits if the config has labels."""

    def __init__(self, config: LevitConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        make = LayerFactory.of(config, rngs)
        widths = [config.dims[0] // 2**i for i in reversed(range(NUM_CONVOLUTIONS))]
        pairs = zip((config.num_channels, *widths), widths, strict=False)
        self.patches = nnx.List(
            [
                make.conv_norm(
                    *pair,
                    config.window,
                    stride=config.stride,
                    padding=config.padding,
                    act="hardswish" if i < NUM_CONVOLUTIONS - 1 else None,
                    axes=("channels", "residual"),
                )
                for i, pair in enumerate(pairs)
            ]
        )
        self.stages = nnx.List([_stage(config, stage, rngs) for stage in range(STAGES)])
        heads = 0 if config.num_labels is None else 1 + config.distilled
        self.heads = nnx.List(
            [Head(config, config.num_labels or 0, rngs=rngs) for _ in range(heads)]
        )

    def __call__(self, pixels: jax.Array, *, train: bool = False) -> jax.Array:
        """Logits [B, L] of pixels [B, H, W, channels], FP32; the mean of both classifiers if there
        are two."""
        pooled = self.features(pixels, train=train).pooled
        if not self.heads or pooled is None:
            return classify(None, pixels)
        logits = [head(pooled, train=train) for head in self.heads]
        return sum(logits[1:], logits[0]) / len(logits)

    def features(self, pixels: jax.Array, *, train: bool = False) -> ImageFeatures:
        """The features of pixels [B, H, W, channels] of the config's size, and their mean.

        With `train`, batch norms use the statistics of the batch and move the running ones.
        """
        config = self.config
        check_pixels(pixels, config.image_size, config.num_channels)
        x = pixels.astype(config.dtype)
        for convolution in self.patches:
            x = convolution(x, train=train)
        x = x.reshape(len(x), -1, x.shape[-1])
        for stage in self.stages:
            for layer in stage:
                x = layer(x, train=train)
        return ImageFeatures(x, mean_of_places(x))


def _stage(config: LevitConfig, stage: int, rngs: nnx.Rngs) -> nnx.List[Residual | Attention]:
    """Attention and MLPs in turn; then, unless it is the last stage, an attention that leaves a
    quarter of the tokens, and an MLP."""
    layers: list[Residual | Attention] = []
    for _ in range(config.depths[stage]):
        layers += [
            Residual(Attention(config, stage, shrinks=False, rngs=rngs)),
            Residual(MLP(config, config.dims[stage], config.mlp_ratios[stage], rngs=rngs)),
        ]
    if stage < STAGES - 1:
        layers += [
            Attention(config, stage, shrinks=True, rngs=rngs),
            Residual(MLP(config, config.dims[stage + 1], MLP_RATIO, rngs=rngs)),
        ]
    return nnx.List(layers)
