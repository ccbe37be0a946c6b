"""A convolution that adds neighbours to what the first block of DeBERTa puts out.

He et al., "DeBERTaV3", 2021, call it nGiE. Axis names: B texts, T tokens, D model width.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from models.errors import ConfigError
from models.layers.activations import activation
from models.layers.factory import LayerFactory


@dataclass(frozen=True)
class NGrams:
    """The window of the convolution and its activation.

    Raises ConfigError for a window that has no middle.
    """

    window: int  # tokens
    act: str

    def __post_init__(self) -> None:
        if self.window % 2 == 0:
            raise ConfigError(f"conv_kernel_size={self.window} is even: it must be odd")
        activation(self.act)


class NGramConvolution(nnx.Module):
    """norm(output + act(conv(input))) of the first block's input and output."""

    def __init__(self, config: NGrams, dim: int, make: LayerFactory, *, norm_eps: float) -> None:
        self.act = config.act
        window, axes = config.window, ("channels", "residual")
        self.conv = make.conv(dim, dim, (window,), padding=window // 2, axes=axes)
        self.norm = make.layer_norm(dim, norm_eps)

    def __call__(self, x: jax.Array, output: jax.Array, real: jax.Array | None) -> jax.Array:
        """x and output [B, T, D] -> [B, T, D]; padding, where real [B, T] is False, counts as
        zeros."""
        if real is None:
            return self.norm(output + activation(self.act)(self.conv(x)))
        shown = real[..., None]
        convolved = self.conv(jnp.where(shown, x, 0))
        return self.norm(output + activation(self.act)(jnp.where(shown, convolved, 0)))
