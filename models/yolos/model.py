"""Fang et al., "You Only Look at One Sequence", 2021.

Axis names: B batch, H height, W width, C channels, T tokens, N detections, D width, L labels.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from models.errors import ConfigError, InputError
from models.layers.blocks import Block
from models.layers.factory import LayerFactory
from models.layers.feature_map import ImageFeatures
from models.layers.pixels import check_pixels
from models.layers.resize import resize
from models.yolos.config import YolosConfig

_HEAD_LAYERS = 3


class Detections(NamedTuple):
    """What an image shows."""

    logits: jax.Array  # [B, N, L + 1], FP32; the last class is that of no object
    boxes: jax.Array  # [B, N, 4], FP32: middle (x, y), width and height; the image's are 1


class Head(nnx.Module):
    """Linear maps with ReLUs between them."""

    def __init__(self, config: YolosConfig, out_dim: int, *, rngs: nnx.Rngs) -> None:
        make, dim = LayerFactory.of(config, rngs), config.dim
        widths = [dim] * (_HEAD_LAYERS - 1) + [out_dim]
        self.layers = nnx.List([make.linear(dim, width) for width in widths])

    def __call__(self, x: jax.Array) -> jax.Array:
        *layers, last = self.layers
        for layer in layers:
            x = jax.nn.relu(layer(x))
        return last(x).astype(jnp.float32)


class Yolos(nnx.Module):
    """Images to features, and to detections if the config has labels."""

    def __init__(self, config: YolosConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        make, dim = LayerFactory.of(config, rngs), config.dim
        rows, columns = config.grid
        tokens = 1 + rows * columns + config.num_detections
        self.patches = make.conv(
            config.num_channels, dim, config.patch_size, stride=config.patch_size
        )
        self.class_token = make.table(batch=1, tokens=1, dim=dim)
        self.detection_tokens = make.table(batch=1, tokens=config.num_detections, dim=dim)
        self.positions = make.table(batch=1, tokens=tokens, dim=dim)
        layers = config.num_layers
        self.mid_positions = (
            make.table(places=layers - 1, batch=1, tokens=tokens, dim=dim)
            if config.mid_positions
            else None
        )
        self.blocks = nnx.List([Block(config.block, rngs=rngs) for _ in range(layers)])
        self.norm = config.block.norm()
        labels = config.num_labels
        self.pooler = make.linear(dim, dim) if labels is None else None
        self.classes = None if labels is None else Head(config, labels + 1, rngs=rngs)
        self.boxes = None if labels is None else Head(config, 4, rngs=rngs)

    def __call__(self, pixels: jax.Array) -> Detections:
        """What pixels [B, H, W, C] show. Raises ConfigError if the model has no labels."""
        if self.classes is None or self.boxes is None:
            raise ConfigError(
                "this model has no object-detection head and only gives features. Set num_labels "
                "in its config, or load a checkpoint for object detection."
            )
        last = self.features(pixels).hidden[:, -self.config.num_detections :]
        return Detections(self.classes(last), jax.nn.sigmoid(self.boxes(last)))

    def features(self, pixels: jax.Array) -> ImageFeatures:
        """The features of pixels [B, H, W, C]: those of a class token, of the patches, which
        leave out pixels behind the last whole one, and of the detections."""
        config = self.config
        check_pixels(pixels, None, config.num_channels)
        size = pixels.shape[1:3]
        if min(size) < config.patch_size:
            raise InputError(
                f"the images are {size[0]} x {size[1]} pixels, less than a patch, "
                f"{config.patch_size} x {config.patch_size}. Resize them as the checkpoint's "
                "preprocessor_config.json says."
            )
        x = self.patches(pixels.astype(config.dtype))
        batch, *grid, dim = x.shape
        ends = (self.class_token, self.detection_tokens)
        first, last = (jnp.tile(end[...].astype(x.dtype), (batch, 1, 1)) for end in ends)
        x = jnp.concatenate([first, x.reshape(batch, -1, dim), last], axis=1)
        x = x + self._resize_tables(self.positions[...], grid).astype(x.dtype)
        middle = None if self.mid_positions is None else self.mid_positions[...][:, 0]
        added = None if middle is None else self._resize_tables(middle, grid).astype(x.dtype)
        for i, block in enumerate(self.blocks):
            x = block(x)
            x = x if added is None or i == config.num_layers - 1 else x + added[i]
        x = self.norm(x)
        return ImageFeatures(x, None if self.pooler is None else jnp.tanh(self.pooler(x[:, 0])))

    def _resize_tables(self, tables: jax.Array, grid: list[int]) -> jax.Array:
        """Tables [B, T, D] of positions for a grid [H, W] of patches."""
        last, (count, _, dim) = self.config.num_detections, tables.shape  # there may be no table
        patches = tables[:, 1:-last].reshape(count, *self.config.grid, dim)
        patches = resize(patches, (grid[0], grid[1]), is_cubic=True)
        patches = patches.reshape(count, grid[0] * grid[1], dim)
        return jnp.concatenate([tables[:, :1], patches, tables[:, -last:]], axis=1)
