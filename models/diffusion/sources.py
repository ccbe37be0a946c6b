"""An image that a new one starts from, and the part of it that is painted anew.

Axis names: B images, H height and W width in pixels, h and w of the latents, C channels.
"""

from functools import partial
from math import ceil
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from models.diffusion.parts import Pipeline
from models.errors import InputError
from models.parameters import merge


class Source(NamedTuple):
    """The latents of an image, as the denoiser makes them."""

    latents: jax.Array  # [B, h, w, C]
    strength: float  # from 0 to 1: how much of the noise, and of the steps, there is
    mask: jax.Array | None = None  # [B, h, w, 1]: 1 where it is painted anew; None: everywhere
    beside: jax.Array | None = None  # [B, h, w, 1 + C]: what a denoiser for inpainting also sees
    keeps_part: bool = False  # see Kind

    def start(self, num_steps: int) -> int:
        """How many of the steps are left out, as diffusers counts."""
        done = num_steps * self.strength
        return num_steps - (ceil(done) if self.keeps_part else int(done))

    @property
    def is_new(self) -> bool:
        """Whether noise alone is the beginning, as diffusers has it for inpainting."""
        return self.mask is not None and self.strength == 1


def make_source(
    pipeline: Pipeline,
    pixels: np.ndarray,
    noise: jax.Array,
    strength: float,
    mask: np.ndarray | None = None,
) -> Source:
    """The source of pixels [B, H, W, 3] from -1 to 1.

    noise [B, h, w, C] draws latents from the autoencoder's distribution; mask [B, H, W] is above
    1/2 where the image is painted anew. Raises InputError for what does not suit the model.
    """
    if not 0 < strength <= 1:
        raise InputError(f"strength={strength} must be greater than 0 and at most 1")
    if pipeline.sees_mask and mask is None:
        raise InputError("this denoiser is made for inpainting: give it a mask")
    if mask is not None and mask.shape != pixels.shape[:3]:
        raise InputError(
            f"the mask has the shape {list(mask.shape)}, but the image {list(pixels.shape)}. Both "
            "must have the same height and width."
        )
    model = pipeline.autoencoder
    latents = _latents(model.graph, model.parameters, pixels, noise)
    keeps_part = pipeline.kind.keeps_part
    if mask is None:
        return Source(latents, strength, keeps_part=keeps_part)
    reduction = model.config.reduction
    anew = (mask >= 0.5).astype(np.float32)[..., None]
    coarse = jnp.asarray(anew[:, ::reduction, ::reduction])
    if not pipeline.sees_mask:
        return Source(latents, strength, coarse, keeps_part=keeps_part)
    left = _latents(model.graph, model.parameters, pixels * (1 - anew), noise)
    return Source(latents, strength, coarse, jnp.concatenate([coarse, left], axis=-1))


@partial(jax.jit, static_argnums=0)
def _latents(graph: Any, parameters: Any, pixels: jax.Array, noise: jax.Array) -> jax.Array:
    """Latents for the denoiser, drawn with noise of standard deviation 1."""
    autoencoder = merge(graph, parameters)
    mean, logvariance = autoencoder.encode(pixels)
    return autoencoder.scaled(mean + jnp.exp(0.5 * logvariance) * noise)
