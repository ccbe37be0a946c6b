"""The U-Net of Ronneberger et al., 2015, for segmentation, with convolutions that keep the size.

Batch norms are in the weights and biases of their convolutions, as compilers fold them.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.layers.convolution import LAYOUTS, Conv

CHANNELS = (64, 128, 256, 512, 1024)
"""Channels at each resolution, from the images' to a sixteenth of it."""


def _convolution(inputs: int, outputs: int, window: int, rngs: nnx.Rngs) -> Conv:
    return Conv(
        inputs,
        outputs,
        (window, window),
        padding=window // 2,
        stddev=0.02,
        param_dtype=jnp.float32,
        rngs=rngs,
    )


class DoubleConvolution(nnx.Module):
    """Two 3x3 convolutions, each with a ReLU: [B, H, W, inputs] -> [B, H, W, outputs]."""

    def __init__(self, inputs: int, outputs: int, rngs: nnx.Rngs) -> None:
        self.first = _convolution(inputs, outputs, 3, rngs)
        self.second = _convolution(outputs, outputs, 3, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.relu(self.second(jax.nn.relu(self.first(x))))


class Up(nnx.Module):
    """A 2x2 transposed convolution with stride 2, what skipped the lower resolutions beside it, and
    a double convolution."""

    def __init__(self, inputs: int, outputs: int, rngs: nnx.Rngs) -> None:
        shape = (2, 2, inputs, outputs)
        self.kernel = nnx.Param(0.02 * jax.random.normal(rngs.params(), shape))
        self.bias = nnx.Param(jnp.zeros((outputs,)))
        self.convolution = DoubleConvolution(2 * outputs, outputs, rngs)

    def __call__(self, x: jax.Array, skipped: jax.Array) -> jax.Array:
        """x [B, H, W, inputs], skipped [B, 2H, 2W, outputs] -> [B, 2H, 2W, outputs]."""
        kernel = self.kernel[...].astype(x.dtype)
        larger = jax.lax.conv_transpose(x, kernel, (2, 2), "VALID", dimension_numbers=LAYOUTS[2])
        return self.convolution(jnp.concatenate([skipped, larger + self.bias[...]], axis=-1))


class ClassicUNet(nnx.Module):
    """Pixels [B, H, W, 3] -> logits [B, H, W, classes]; H and W are multiples of 16."""

    def __init__(self, classes: int, *, rngs: nnx.Rngs) -> None:
        pairs = list(zip((3, *CHANNELS), CHANNELS, strict=False))
        self.down = nnx.List([DoubleConvolution(*pair, rngs) for pair in pairs])
        self.up = nnx.List([Up(b, a, rngs) for a, b in reversed(pairs[1:])])
        self.head = _convolution(CHANNELS[0], classes, 1, rngs)

    def __call__(self, pixels: jax.Array) -> jax.Array:
        x, skipped = self.down[0](pixels), []
        for block in list(self.down)[1:]:
            skipped.append(x)
            x = block(_max_pool(x))
        for up in self.up:
            x = up(x, skipped.pop())
        return self.head(x)


def _max_pool(x: jax.Array) -> jax.Array:
    """The largest of each 2x2 pixels."""
    window = (1, 2, 2, 1)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")
