"""Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", 2021.

Axis names: B batch, H rows and W columns of tokens, C width of a stage, L labels.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.layers.classifier import classify
from models.layers.factory import LayerFactory
from models.layers.feature_map import ImageFeatures, mean_of_places
from models.layers.pixels import check_pixels
from models.layers.relative import WindowBias
from models.swin.config import SwinConfig

_EPS = 1e-5  # of the norms outside blocks


class Block(nnx.Module):
    """x + attention(norm(x)) within windows, then x + mlp(norm(x)).

    Every second block moves its windows by half of their size, if there is more than one.
    """

    def __init__(self, config: SwinConfig, stage: int, *, is_shifted: bool, rngs: nnx.Rngs) -> None:
        shape = config.block(stage)
        self.window = config.window_size
        is_shifted = is_shifted and min(config.grid(stage)) > self.window
        self.shift = self.window // 2 if is_shifted else 0
        self.attention_norm = shape.norm()
        self.attention = shape.attention(rngs)
        self.relative = WindowBias(
            shape.num_heads,
            (self.window, self.window),
            class_token=False,
            stddev=shape.initializer_range,
            param_dtype=shape.param_dtype,
            rngs=rngs,
        )
        self.mlp_norm = shape.norm()
        self.mlp = shape.mlp(rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [B, H, W, C] -> [B, H, W, C]."""
        x = x + self._attended(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))

    def _attended(self, x: jax.Array) -> jax.Array:
        batch, height, width, _ = x.shape
        x = _padded(x, self.window)
        x = jnp.roll(x, (-self.shift, -self.shift), (1, 2)) if self.shift else x
        rows, columns = x.shape[1:3]
        mask = None
        if self.shift:
            mask = jnp.tile(neighbours(rows, columns, self.window, self.shift), (batch, 1, 1))
        attended, _ = self.attention(windows_of(x, self.window), mask, bias=self.relative())
        x = _joined(attended, rows, columns, self.window)
        x = jnp.roll(x, (self.shift, self.shift), (1, 2)) if self.shift else x
        return x[:, :height, :width]


class Merging(nnx.Module):
    """Four neighbours become one token of twice the width."""

    def __init__(self, config: SwinConfig, stage: int, *, rngs: nnx.Rngs) -> None:
        make, width = LayerFactory.of(config, rngs), config.width(stage)
        self.norm = make.layer_norm(4 * width, _EPS)
        self.reduction = make.linear(4 * width, 2 * width, bias=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = _padded(x, 2)
        batch, rows, columns, width = x.shape
        x = x.reshape(batch, rows // 2, 2, columns // 2, 2, width)
        # Of the four, those of the left column stand first.
        x = x.transpose(0, 1, 3, 4, 2, 5).reshape(batch, rows // 2, columns // 2, 4 * width)
        return self.reduction(self.norm(x))


class Stage(nnx.Module):
    """Blocks, then the merging of tokens unless it is the last stage."""

    def __init__(self, config: SwinConfig, stage: int, *, rngs: nnx.Rngs) -> None:
        self.blocks = nnx.List(
            [
                Block(config, stage, is_shifted=i % 2 == 1, rngs=rngs)
                for i in range(config.depths[stage])
            ]
        )
        is_last = stage == len(config.depths) - 1
        self.merging = None if is_last else Merging(config, stage, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        for block in self.blocks:
            x = block(x)
        return x if self.merging is None else self.merging(x)


class Swin(nnx.Module):
    """Images to features, and to logits if the config has labels."""

    def __init__(self, config: SwinConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        make, dtype, size = LayerFactory.of(config, rngs), config.param_dtype, config.patch_size
        self.patches = make.conv(config.num_channels, config.dim, size, stride=size)
        self.patch_norm = make.layer_norm(config.dim, _EPS)
        rows, columns = config.grid(0)
        table = jnp.zeros((1, rows * columns, config.dim), dtype)
        self.positions = (
            nnx.Param(table, axes=("batch", "tokens", "dim")) if config.absolute_positions else None
        )
        stages = range(len(config.depths))
        self.stages = nnx.List([Stage(config, stage, rngs=rngs) for stage in stages])
        width = config.width(-1)
        self.norm = make.layer_norm(width, config.norm_eps) if config.final_norm else None
        self.classifier = make.classifier(width, config.num_labels)

    def __call__(self, pixels: jax.Array) -> jax.Array:
        """Logits [B, L] of pixels [B, height, width, channels], FP32."""
        features = self.features(pixels)
        assert features.pooled is not None
        return classify(self.classifier, features.pooled)

    def features(self, pixels: jax.Array) -> ImageFeatures:
        """The features of pixels [B, height, width, channels] of the config's size, and their mean
        over the image."""
        config = self.config
        check_pixels(pixels, config.image_size, config.num_channels)
        x = self.patch_norm(self.patches(pixels.astype(config.dtype)))
        if self.positions is not None:
            x = x + self.positions[...].astype(x.dtype).reshape(1, *x.shape[1:])
        for stage in self.stages:
            x = stage(x)
        x = x.reshape(len(x), -1, x.shape[-1])
        x = x if self.norm is None else self.norm(x)
        return ImageFeatures(x, mean_of_places(x))


def _padded(x: jax.Array, multiple: int) -> jax.Array:
    """x [B, H, W, C] with zeros below and to the right, so that a multiple of tokens fits in."""
    below, right = (-size % multiple for size in x.shape[1:3])
    return jnp.pad(x, ((0, 0), (0, below), (0, right), (0, 0))) if below or right else x


def windows_of(x: jax.Array, window: int) -> jax.Array:
    """The windows of x [B, H, W, C], row by row: [B · windows, window · window, C]."""
    batch, rows, columns, width = x.shape
    x = x.reshape(batch, rows // window, window, columns // window, window, width)
    return x.swapaxes(2, 3).reshape(-1, window * window, width)


def _joined(x: jax.Array, rows: int, columns: int, window: int) -> jax.Array:
    """The inverse of `windows_of`: [B, rows, columns, C]."""
    x = x.reshape(-1, rows // window, columns // window, window, window, x.shape[-1])
    return x.swapaxes(2, 3).reshape(-1, rows, columns, x.shape[-1])


def neighbours(rows: int, columns: int, window: int, shift: int) -> np.ndarray:
    """Of the windows of an image that was rolled by `shift`, which tokens were neighbours before:
    [windows, window · window, window · window]."""

    def regions(size: int) -> np.ndarray:
        places = np.arange(size)
        return (places >= size - window).astype(int) + (places >= size - shift)

    image = 3 * regions(rows)[:, None] + regions(columns)
    image = image.reshape(rows // window, window, columns // window, window)
    windows = image.swapaxes(1, 2).reshape(-1, window * window)
    return np.equal(windows[:, :, None], windows[:, None, :])
