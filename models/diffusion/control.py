"""ControlNet: a copy of the denoiser's first half that also sees an image, such as edges or depths
(Zhang et al., "Adding Conditional Control to Text-to-Image Diffusion Models", 2023).

Axis names: B batch, H and W of the latents, C channels.
"""

from dataclasses import dataclass
from itertools import pairwise

import jax
import jax.numpy as jnp
from flax import nnx

from models.diffusion.blocks import ENDS, check_latents, conv
from models.diffusion.config import UNetConfig
from models.diffusion.unet import Context, Control, Descent, skip_channels
from models.errors import ConfigError, InputError
from models.layers.convolution import Conv
from models.layers.pixels import check_pixels
from models.settings import setting


@dataclass(frozen=True)
class ControlConfig(UNetConfig):
    """The half of the denoiser; the default is that of Stable Diffusion 2.1."""

    image_channels: int = setting("conditioning_channels", default=3)
    image_widths: tuple[int, ...] = setting(
        "conditioning_embedding_out_channels", default=(16, 32, 96, 256)
    )
    blue_first: bool = False  # the image's channels are turned around

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.image_widths:
            raise ConfigError(
                "image_widths is empty: give the channels of at least one convolution"
            )

    @property
    def reduction(self) -> int:
        """Height and width of a latent in pixels of the image."""
        return 1 << (len(self.image_widths) - 1)


class Hint(nnx.Module):
    """The image as channels of the latents: convolutions, every second of which halves it."""

    def __init__(self, config: ControlConfig, *, rngs: nnx.Rngs) -> None:
        widths, dtype = config.image_widths, config.param_dtype
        self.conv_in = conv(config.image_channels, widths[0], 3, dtype, rngs, axes=ENDS)
        blocks = []
        for before, after in pairwise(widths):
            blocks.append(conv(before, before, 3, dtype, rngs, axes=ENDS))
            blocks.append(conv(before, after, 3, dtype, rngs, stride=2, axes=ENDS))
        self.blocks = nnx.List(blocks)
        self.conv_out = conv(widths[-1], config.channels[0], 3, dtype, rngs, axes=ENDS)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = jax.nn.silu(self.conv_in(x))
        for block in self.blocks:
            x = jax.nn.silu(block(x))
        return self.conv_out(x)


class ControlNet(Descent):
    """Noisy latents and an image to what is added within the denoiser."""

    config: ControlConfig

    def __init__(self, config: ControlConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        self.hint = Hint(config, rngs=rngs)
        self.handed = nnx.List([self._end(w, rngs) for w in skip_channels(config)])
        self.coarsest = self._end(config.channels[-1], rngs)

    def _end(self, width: int, rngs: nnx.Rngs) -> Conv:
        return conv(width, width, 1, self.config.param_dtype, rngs)

    def __call__(
        self,
        latents: jax.Array,
        time: jax.Array,
        context: jax.Array,
        image: jax.Array,
        *,
        scale: jax.Array | float = 1.0,
        pooled: jax.Array | None = None,
        ids: jax.Array | None = None,
    ) -> Control:
        """What image [B, 8 · H, 8 · W, C], its pixels from 0 to 1, adds to the denoiser, times
        `scale`; other arguments as those of the denoiser."""
        config = self.config
        check_latents(latents, config.in_channels, config.multiple)
        check_pixels(image, None, config.image_channels)
        expected = tuple(size * config.reduction for size in latents.shape[1:3])
        if image.shape[1:3] != expected:
            raise InputError(
                f"the ControlNet's image is {image.shape[1]} x {image.shape[2]}, but the image to "
                f"generate is {expected[0]} x {expected[1]}. Both must have the same size."
            )
        image = image[..., ::-1] if config.blue_first else image
        emb = self.embed(time, pooled, ids, None)
        x = self.conv_in(latents.astype(config.dtype)) + self.hint(image.astype(config.dtype))
        middle, handed = self.descend(x, emb, Context(context.astype(config.dtype)))
        scale = jnp.asarray(scale, config.dtype)
        return Control(
            [scale * end(x) for end, x in zip(self.handed, handed, strict=True)],
            scale * self.coarsest(middle),
        )
