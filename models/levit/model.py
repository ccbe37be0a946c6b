"""Graham et al., "LeViT: a Vision Transformer in ConvNet's Clothing for Faster Inference", 2021.

Axis names: B batch, T tokens, C width of a stage, N heads, K width of a key, L labels.
"""

from itertools import pairwise

import jax
import jax.numpy as jnp
from flax import nnx

from models.layers.attention import AttentionCall, dot_product_attention
from models.layers.classifier import classify
from models.layers.factory import LayerFactory
from models.layers.feature_map import FeatureMap, mean_of_places
from models.layers.image_model import ImageModel
from models.layers.relative import distances
from models.levit.config import MLP_RATIO, NUM_CONVOLUTIONS, STAGES, STRIDE, LevitConfig

_OUTWARDS = ("split_channels", "dim")  # axes of kernels that make what is added


class Attention(nnx.Module):
    """Self-attention, or with a stride that of every second token of both axes over all. A table
    has a bias of each distance."""

    def __init__(self, config: LevitConfig, stage: int, *, shrinks: bool, rngs: nnx.Rngs) -> None:
        make, shape = LayerFactory.of(config, rngs), config.heads(stage, shrinks=shrinks)
        self.shape, self.stride, self.grid = shape, STRIDE if shrinks else 1, config.grid(stage)
        dim, out = config.dims[stage], config.dims[stage + shrinks]
        keys, values = shape.number * shape.key_dim, shape.number * shape.value_dim
        self.queries = make.linear_norm(dim, keys) if shrinks else None
        # What is made of all tokens: of each head first queries, if there are, keys and values.
        self.fused = make.linear_norm(dim, keys + values if shrinks else 2 * keys + values)
        self.projection = make.linear_norm(values, out, axes=_OUTWARDS)
        self.table = make.constant(biases=shape.number, buckets=self.grid**2)

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        batch, length, dim = x.shape
        heads, key_dim, _ = self.shape
        fused = self.fused(x, train=train).reshape(batch, length, heads, -1)
        if self.queries is None:
            query, fused = fused[..., :key_dim], fused[..., key_dim:]
        else:
            image = x.reshape(batch, self.grid, self.grid, dim)
            every = image[:, :: self.stride, :: self.stride].reshape(batch, -1, dim)
            query = self.queries(every, train=train).reshape(batch, -1, heads, key_dim)
        key, value = fused[..., :key_dim], fused[..., key_dim:]
        bias = self.table[...].astype(jnp.float32)[:, distances(self.grid, self.stride)]
        mixed = dot_product_attention(query, key, value, AttentionCall(bias=bias))
        mixed = mixed.reshape(batch, query.shape[1], -1)
        return self.projection(jax.nn.hard_swish(mixed), train=train)


class MLP(nnx.Module):
    """down(hard_swish(up(x)))."""

    def __init__(self, config: LevitConfig, dim: int, ratio: int, *, rngs: nnx.Rngs) -> None:
        make = LayerFactory.of(config, rngs)
        self.up = make.linear_norm(dim, ratio * dim)
        self.down = make.linear_norm(ratio * dim, dim, axes=_OUTWARDS)

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

    def __init__(self, make: LayerFactory, width: int, labels: int) -> None:
        self.norm = make.batch_norm(width)
        self.linear = make.linear(width, labels, axes=("dim", "label"))

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        return self.linear(self.norm(x, train=train)).astype(jnp.float32)


class Levit(ImageModel):
    """Images to features, and to logits if the config has labels."""

    def __init__(self, config: LevitConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        make, labels = LayerFactory.of(config, rngs), config.num_labels
        widths = [config.dims[0] // 2**i for i in reversed(range(NUM_CONVOLUTIONS))]
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
                for i, pair in enumerate(pairwise([config.num_channels, *widths]))
            ]
        )
        self.stages = nnx.List([_stage(config, stage, rngs) for stage in range(STAGES)])
        count = 0 if labels is None else 1 + config.distilled
        self.heads = nnx.List([Head(make, config.dims[-1], labels or 0) for _ in range(count)])

    def see(self, x: jax.Array, *, train: bool) -> FeatureMap:
        for convolution in self.patches:
            x = convolution(x, train=train)
        x = x.reshape(len(x), -1, x.shape[-1])
        for stage in self.stages:
            for layer in stage:
                x = layer(x, train=train)
        return FeatureMap(x, mean_of_places(x))

    def labelled(self, pooled: jax.Array, *, train: bool) -> jax.Array:
        """Logits of what is pooled; the mean of both classifiers if there are two."""
        logits = [head(pooled, train=train) for head in self.heads] or [classify(None, pooled)]
        return sum(logits[1:], logits[0]) / len(logits)


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
