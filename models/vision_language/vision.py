"""The vision tower of SigLIP (Zhai et al., 2023), and what makes tokens of a text of its patches.

Axis names: N images, H height, W width, C channels, P patches, V width of the tower, D model width.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.layers.blocks import Block
from models.layers.factory import LayerFactory
from models.layers.linear import Linear
from models.layers.norms import RMSNorm
from models.layers.pixels import check_pixels
from models.vision_language.config import VisionConfig, VisionLanguageConfig


class VisionTower(nnx.Module):
    """Full blocks over the patches of an image."""

    def __init__(
        self, config: VisionConfig, dtype: str, param_dtype: str, *, rngs: nnx.Rngs
    ) -> None:
        tower = config.tower
        self.config, self.dtype = config, dtype
        make, size = LayerFactory(tower.initializer_range, param_dtype, rngs), config.patch_size
        self.patches = make.conv(config.num_channels, tower.dim, size, stride=size)
        self.positions = make.table(tokens=config.side**2, dim=tower.dim)
        shape = tower.block(param_dtype)
        self.blocks = nnx.List([Block(shape, rngs=rngs) for _ in range(tower.num_layers)])
        self.norm = shape.norm()

    def __call__(self, pixels: jax.Array) -> jax.Array:
        """Normed vectors [N, P, V] of pixels [N, H, W, C], which have the config's size. Each patch
        has its own position; transformers' Idefics3 looks it up by the patch's fraction of the
        image in FP32, which at some odd sizes gives a neighbour's, depending on the machine."""
        size = self.config.image_size
        check_pixels(pixels, (size, size), self.config.num_channels)
        x = self.patches(pixels.astype(self.dtype))
        x = x.reshape(len(x), -1, x.shape[-1])
        x = x + self.positions[...].astype(x.dtype)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Connector(nnx.Module):
    """Patches to tokens: those of a window side by side, or their mean, normed; then a linear
    map."""

    def __init__(self, config: VisionLanguageConfig, *, rngs: nnx.Rngs) -> None:
        tower, dtype = config.vision.tower, config.param_dtype
        width = tower.dim if config.pooled else tower.dim * config.window**2
        self.config = config
        self.norm = (
            RMSNorm(tower.dim, eps=tower.norm_eps, offset=1.0, axis="residual", param_dtype=dtype)
            if config.pooled
            else None
        )
        self.projection = Linear(
            {"dim": width},
            {"projection": config.text.dim},
            stddev=config.text.initializer_range,
            param_dtype=dtype,
            rngs=rngs,
        )

    def __call__(self, patches: jax.Array) -> jax.Array:
        """Vectors [N, P, V] of an image's patches -> [N, tokens, D] of its tokens."""
        side, window = self.config.vision.side // self.config.window, self.config.window
        x = patches.reshape(len(patches), side, window, side, window, -1)
        if self.norm is not None:
            mean = jnp.mean(x.astype(jnp.float32), axis=(2, 4)).astype(x.dtype)
            return self.projection(self.norm(mean.reshape(len(x), side * side, -1)))
        return self.projection(x.swapaxes(2, 3).reshape(len(x), side * side, -1))
