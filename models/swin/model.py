"""Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", 2021.

Axis names: B batch, H rows and W columns of tokens, C width of a stage, L labels.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.layers.blocks import Block
from models.layers.factory import LayerFactory
from models.layers.feature_map import FeatureMap, mean_of_places
from models.layers.image_model import ImageModel
from models.layers.windows import joined, padded, windows
from models.swin.config import SwinConfig

_EPS = 1e-5  # of the norms outside blocks


class WindowBlock(Block):
    """A block over x [B, H, W, C], in which tokens see those of their window.

    Every second block moves its windows by half of their size, if there is more than one.
    """

    def __init__(self, config: SwinConfig, stage: int, *, is_shifted: bool, rngs: nnx.Rngs) -> None:
        shape, self.window = config.block(stage), config.window_size
        super().__init__(shape, rngs=rngs)
        is_shifted = is_shifted and min(config.grid(stage)) > self.window
        self.shift = self.window // 2 if is_shifted else 0
        size = self.window, self.window
        self.relative = shape.window_bias(rngs, size, class_token=False)

    def attend(self, x: jax.Array) -> jax.Array:
        height, width = x.shape[1:3]
        x = padded(x, self.window)
        x = jnp.roll(x, (-self.shift, -self.shift), (1, 2)) if self.shift else x
        cut = windows(x, self.window)
        mask = None
        if self.shift:
            rows, columns = x.shape[1:3]
            mask = jnp.tile(neighbours(rows, columns, self.window, self.shift), (len(x), 1, 1))
        tokens = cut.reshape(-1, self.window**2, x.shape[-1])
        attended = self.attention(tokens, mask, bias=self.relative())
        x = joined(attended.reshape(cut.shape))
        x = jnp.roll(x, (self.shift, self.shift), (1, 2)) if self.shift else x
        return x[:, :height, :width]


class Merging(nnx.Module):
    """Four neighbours become one token of twice the width."""

    def __init__(self, config: SwinConfig, stage: int, *, rngs: nnx.Rngs) -> None:
        make, width = LayerFactory.of(config, rngs), config.dims[stage]
        self.norm = make.layer_norm(4 * width, _EPS)
        self.reduction = make.linear(4 * width, 2 * width, bias=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = windows(padded(x, 2), 2).swapaxes(3, 4)  # of the four, those of the left come first
        return self.reduction(self.norm(x.reshape(*x.shape[:3], -1)))


class Stage(nnx.Module):
    """Blocks, then the merging of tokens unless it is the last stage."""

    def __init__(self, config: SwinConfig, stage: int, *, rngs: nnx.Rngs) -> None:
        self.blocks = nnx.List(
            [
                WindowBlock(config, stage, is_shifted=i % 2 == 1, rngs=rngs)
                for i in range(config.depths[stage])
            ]
        )
        is_last = stage == len(config.depths) - 1
        self.merging = None if is_last else Merging(config, stage, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        for block in self.blocks:
            x = block(x)
        return x if self.merging is None else self.merging(x)


class Swin(ImageModel):
    """Images to features, and to logits if the config has labels."""

    def __init__(self, config: SwinConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        make, size = LayerFactory.of(config, rngs), config.patch_size
        self.patches = make.conv(config.num_channels, config.dims[0], size, stride=size)
        self.patch_norm = make.layer_norm(config.dims[0], _EPS)
        rows, columns = config.grid(0)
        self.positions = (
            make.constant(batch=1, tokens=rows * columns, dim=config.dims[0])
            if config.absolute_positions
            else None
        )
        stages = range(len(config.depths))
        self.stages = nnx.List([Stage(config, stage, rngs=rngs) for stage in stages])
        width = config.dims[-1]
        self.norm = make.layer_norm(width, config.norm_eps) if config.final_norm else None
        self.classifier = make.classifier(width, config.num_labels)

    def see(self, x: jax.Array, *, train: bool) -> FeatureMap:
        x = self.patch_norm(self.patches(x))
        if self.positions is not None:
            x = x + self.positions[...].astype(x.dtype).reshape(1, *x.shape[1:])
        for stage in self.stages:
            x = stage(x)
        x = x.reshape(len(x), -1, x.shape[-1])
        x = x if self.norm is None else self.norm(x)
        return FeatureMap(x, mean_of_places(x))


def neighbours(rows: int, columns: int, window: int, shift: int) -> np.ndarray:
    """Whether tokens in a window of an image that was rolled by `shift` were neighbours before:
    [windows, window · window, window · window]."""

    def regions(size: int) -> np.ndarray:
        places = np.arange(size)
        return (places >= size - window).astype(int) + (places >= size - shift)

    image = 3 * regions(rows)[:, None] + regions(columns)
    regions_of = windows(image[None, :, :, None], window).reshape(-1, window * window)
    return np.equal(regions_of[:, :, None], regions_of[:, None, :])
