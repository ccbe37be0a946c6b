"""A convolution that adds neighbours to what the first block of DeBERTa puts out.

He et al., "DeBERTaV3", 2021, call it nGiE. Axis names: B texts, T tokens, D model width.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from models.errors import ConfigError
from models.layers.activations import activation
from models.layers.convolution import Conv
from models.layers.norms import LayerNorm


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

    def __init__(
        self,
        config: NGrams,
        dim: int,
        *,
        norm_eps: float,
        stddev: float,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        self.act = config.act
        self.conv = Conv(
            dim,
            dim,
            (config.window,),
            padding=config.window // 2,
            axes=("channels", "residual"),
            stddev=stddev,
            param_dtype=param_dtype,
            rngs=rngs,
        )
        self.norm = LayerNorm(dim, eps=norm_eps, param_dtype=param_dtype)

    def __call__(self, x: jax.Array, output: jax.Array, real: jax.Array | None) -> jax.Array:
        """x and output [B, T, D] -> [B, T, D]; padding, where real [B, T] is False, counts as
        zeros."""
        if real is None:
            return self.norm(output + activation(self.act)(self.conv(x)))
        shown = real[..., None]
        convolved = self.conv(jnp.where(shown, x, 0))
        return self.norm(output + activation(self.act)(jnp.where(shown, convolved, 0)))
