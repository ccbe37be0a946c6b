"""Ranftl et al., "Vision Transformers for Dense Prediction", 2021.

Axis names: B batch, H rows, W columns, T tokens, D width of the backbone, C channels, L labels.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.dpt.config import DPTConfig
from models.dpt.stem import Stem
from models.layers.activations import activation
from models.layers.axes import make_bias
from models.layers.convolution import Conv
from models.layers.factory import LayerFactory
from models.layers.norms import BatchNorm
from models.layers.pixels import check_pixels
from models.layers.resize import resize
from models.vit.model import ViT

_DEPTH = 32  # channels in front of the last layer of the head for depth


class Enlarging(nnx.Module):
    """Every pixel becomes `factor` x `factor` pixels, by a linear map of its own for each: a
    transposed convolution whose windows do not overlap."""

    def __init__(self, config: DPTConfig, channels: int, factor: int, *, rngs: nnx.Rngs) -> None:
        make = LayerFactory.of(config.backbone, rngs)
        self.kernel = make.table(channels=channels, height=factor, width=factor, dim=channels)
        self.bias = make_bias({"dim": channels}, config.param_dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.kernel[...].astype(x.dtype)
        batch, rows, columns, _ = x.shape
        factor = kernel.shape[1]
        y = jnp.tensordot(x, kernel, axes=1).swapaxes(2, 3)  # [B, H, factor, W, factor, C]
        y = y.reshape(batch, factor * rows, factor * columns, -1)
        return y + self.bias[...].astype(x.dtype)


class Reassembly(nnx.Module):
    """Tokens to a feature map, larger or smaller than their grid."""

    def __init__(self, config: DPTConfig, channels: int, factor: float, *, rngs: nnx.Rngs) -> None:
        dim = config.backbone.dim
        self.readout, self.act = config.readout, config.backbone.act
        make = LayerFactory.of(config.backbone, rngs)
        self.project = make.linear(2 * dim, dim) if config.readout == "project" else None
        self.projection = _conv(config, dim, channels, rngs, window=1)
        self.enlarging = (
            Enlarging(config, channels, round(factor), rngs=rngs) if factor > 1 else None
        )
        self.shrinking = (
            _conv(config, channels, channels, rngs, stride=round(1 / factor))
            if factor < 1
            else None
        )

    def __call__(self, tokens: jax.Array, grid: tuple[int, int]) -> jax.Array:
        """tokens [B, 1 + H · W, D] -> [B, factor · H, factor · W, C]."""
        first, x = tokens[:, :1], tokens[:, 1:]
        if self.project is not None:
            both = jnp.concatenate([x, jnp.broadcast_to(first, x.shape)], axis=-1)
            x = activation(self.act)(self.project(both))
        elif self.readout == "add":
            x = x + first
        x = self.projection(x.reshape(len(x), *grid, -1))
        x = x if self.enlarging is None else self.enlarging(x)
        return x if self.shrinking is None else self.shrinking(x)


class Residual(nnx.Module):
    """x + two convolutions, each after a ReLU and, if the config says so, before a batch norm."""

    def __init__(self, config: DPTConfig, *, rngs: nnx.Rngs) -> None:
        dim = config.fusion_dim
        norms = 2 if config.batch_norm else 0
        self.layers = nnx.List(
            [_conv(config, dim, dim, rngs, bias=config.fusion_bias) for _ in range(2)]
        )
        self.norms = nnx.List(
            [BatchNorm(dim, param_dtype=config.param_dtype) for _ in range(norms)]
        )

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        y = x
        for i, layer in enumerate(self.layers):
            y = layer(jax.nn.relu(y))
            y = self.norms[i](y, train=train) if self.norms else y
        return x + y


class Fusion(nnx.Module):
    """Adds a feature map to what smaller ones gave, and doubles its size."""

    def __init__(self, config: DPTConfig, *, rngs: nnx.Rngs) -> None:
        self.projection = _conv(config, config.fusion_dim, config.fusion_dim, rngs, window=1)
        self.addition = Residual(config, rngs=rngs)  # the first fusion has it, but nothing to add
        self.after = Residual(config, rngs=rngs)

    def __call__(self, x: jax.Array | None, added: jax.Array, *, train: bool) -> jax.Array:
        if x is None:
            x = added
        else:
            rows, columns = x.shape[1:3]
            x = x + self.addition(resize(added, (rows, columns)), train=train)
        return self.projection(_double_size(self.after(x, train=train)))


class DepthHead(nnx.Module):
    """[B, H, W, C] -> depths [B, 2 · H, 2 · W], FP32."""

    def __init__(self, config: DPTConfig, *, rngs: nnx.Rngs) -> None:
        dim = config.fusion_dim
        self.projection = _conv(config, dim, dim, rngs) if config.projection else None
        self.first = _conv(config, dim, dim // 2, rngs)
        self.second = _conv(config, dim // 2, _DEPTH, rngs)
        self.last = _conv(config, _DEPTH, 1, rngs, window=1)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x if self.projection is None else jax.nn.relu(self.projection(x))
        x = self.second(_double_size(self.first(x)))
        return jax.nn.relu(self.last(jax.nn.relu(x)))[..., 0].astype(jnp.float32)


class ClassHead(nnx.Module):
    """[B, H, W, C] -> logits [B, H, W, L], FP32."""

    def __init__(self, config: DPTConfig, labels: int, *, rngs: nnx.Rngs) -> None:
        dim = config.fusion_dim
        self.first = _conv(config, dim, dim, rngs, bias=False)
        self.norm = BatchNorm(dim, param_dtype=config.param_dtype)
        self.last = _conv(config, dim, labels, rngs, window=1)

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        x = jax.nn.relu(self.norm(self.first(x), train=train))
        return self.last(x).astype(jnp.float32)


class DPT(nnx.Module):
    """Images to depths, or to logits of every place if the config has labels."""

    def __init__(self, config: DPTConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        labels = config.num_labels
        first = config.num_stem_maps
        pairs = list(zip(config.neck_dims, config.factors, strict=True))
        self.stem = (
            None
            if config.stem is None
            else Stem(
                config.stem,
                stddev=config.backbone.initializer_range,
                param_dtype=config.param_dtype,
                rngs=rngs,
            )
        )
        self.backbone = ViT(config.backbone, rngs=rngs)
        self.reassemblies = nnx.List(
            [Reassembly(config, *pair, rngs=rngs) for pair in pairs[first:]]
        )
        self.convolutions = nnx.List(
            [_conv(config, dim, config.fusion_dim, rngs, bias=False) for dim, _ in pairs]
        )
        self.fusions = nnx.List([Fusion(config, rngs=rngs) for _ in pairs])
        self.depth = DepthHead(config, rngs=rngs) if labels is None else None
        self.classes = None if labels is None else ClassHead(config, labels, rngs=rngs)
        self.auxiliary = (
            ClassHead(config, labels, rngs=rngs)
            if labels is not None and config.auxiliary
            else None
        )

    def __call__(self, pixels: jax.Array, *, train: bool = False) -> jax.Array:
        """Depths [B, H, W], or logits [B, H, W, L], in FP32 of pixels [B, height, width, channels]
        of the config's size."""
        sums = self.sums(pixels, train=train)
        if self.depth is not None:
            return self.depth(sums[self.config.head_index])
        return self.head_logits(sums, train=train)[0]

    def head_logits(
        self, sums: list[jax.Array], *, train: bool = False
    ) -> tuple[jax.Array, jax.Array | None]:
        """Logits of the head and of the auxiliary one, which is half as large, if there is one."""
        assert self.classes is not None
        logits = _double_size(self.classes(sums[self.config.head_index], train=train))
        if self.auxiliary is None:
            return logits, None
        return logits, self.auxiliary(sums[-1], train=train)

    def sums(self, pixels: jax.Array, *, train: bool = False) -> list[jax.Array]:
        """The feature maps [B, H, W, C] of all fusions, the smallest first."""
        config = self.config
        maps: list[jax.Array] = []
        if self.stem is not None:
            check_pixels(pixels, config.image_size, config.num_channels)
            *maps, pixels = self.stem(pixels.astype(config.dtype))
        outputs = self.backbone.block_outputs(pixels)
        maps += [
            reassembly(outputs[i], config.backbone.window)
            for i, reassembly in zip(config.chosen[len(maps) :], self.reassemblies, strict=True)
        ]
        maps = [conv(x) for conv, x in zip(self.convolutions, maps, strict=True)]
        sums: list[jax.Array] = []
        for fusion, added in zip(self.fusions, reversed(maps), strict=True):
            sums.append(fusion(sums[-1] if sums else None, added, train=train))
        return sums


def _double_size(x: jax.Array) -> jax.Array:
    return resize(x, (2 * x.shape[1], 2 * x.shape[2]), keeps_corners=True)


def _conv(
    config: DPTConfig,
    before: int,
    after: int,
    rngs: nnx.Rngs,
    *,
    window: int = 3,
    stride: int = 1,
    bias: bool = True,
) -> Conv:
    """A convolution that keeps the size up to its stride."""
    return LayerFactory.of(config.backbone, rngs).conv(
        before, after, window, stride=stride, padding=window // 2, bias=bias
    )
