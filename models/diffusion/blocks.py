"""Building blocks that the denoiser and the autoencoder share. Images are [B, H, W, C]."""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from models.errors import InputError
from models.layers.convolution import Conv
from models.layers.factory import LayerFactory
from models.layers.linear import Linear
from models.layers.norms import GroupNorm
from models.layers.pixels import check_pixels

STDDEV = 0.02  # of the initial weights
ENDS = ("channels", "out_channels")  # axes of the convolutions at both ends, which are not split


def conv(
    in_channels: int,
    out_channels: int,
    window: int,
    param_dtype: str,
    rngs: nnx.Rngs,
    *,
    stride: int = 1,
    padding: tuple[int, int] | None = None,
    axes: tuple[str, str] = ("channels", "dim"),
) -> Conv:
    """A square convolution that keeps the size up to its stride."""
    padded = window // 2 if padding is None else padding
    make = LayerFactory(STDDEV, param_dtype, rngs)
    return make.conv(in_channels, out_channels, window, stride=stride, padding=padded, axes=axes)


def linear(
    in_axes: Mapping[str, int], out_axes: Mapping[str, int], param_dtype: str, rngs: nnx.Rngs
) -> Linear:
    """A linear map with a bias; axes as those of Linear."""
    return LayerFactory(STDDEV, param_dtype, rngs).dense(in_axes, out_axes)


class ResidualBlock(nnx.Module):
    """shortcut(x) + convolution_2(silu(norm_2(convolution_1(silu(norm_1(x))) + time))).

    As in Megatron's layout, the first convolution and what follows it are split by channels, so
    that a block needs one all-reduce.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        *,
        time_dim: int | None,  # width of the time embedding; None = there is no time
        groups: int,  # of channels, in the norms
        eps: float,
        param_dtype: str,
        rngs: nnx.Rngs,
    ) -> None:
        norm = partial(GroupNorm, groups=groups, eps=eps, param_dtype=param_dtype)
        inside = {"split_channels": channels}
        self.norm_1 = norm(in_channels)
        self.conv_1 = conv(
            in_channels, channels, 3, param_dtype, rngs, axes=("dim", "split_channels")
        )
        self.time = (
            None if time_dim is None else linear({"time": time_dim}, inside, param_dtype, rngs)
        )
        self.norm_2 = norm(channels, axis="split_channels")
        self.conv_2 = conv(channels, channels, 3, param_dtype, rngs, axes=("split_channels", "dim"))
        self.shortcut = (
            None if in_channels == channels else conv(in_channels, channels, 1, param_dtype, rngs)
        )

    def __call__(self, x: jax.Array, time: jax.Array | None = None) -> jax.Array:
        """x [B, H, W, in_channels], time [B, time_dim] -> [B, H, W, channels]."""
        y = self.conv_1(jax.nn.silu(self.norm_1(x)))
        if self.time is not None and time is not None:
            y = y + self.time(jax.nn.silu(time))[:, None, None, :]
        y = self.conv_2(jax.nn.silu(self.norm_2(y)))
        return y + (x if self.shortcut is None else self.shortcut(x))


def check_latents(latents: jax.Array, channels: int, multiple: int) -> None:
    """Raises InputError unless latents are [B, H, W, channels] whose sizes are such multiples."""
    check_pixels(latents, None, channels)
    if any(size % multiple for size in latents.shape[1:3]):
        raise InputError(
            f"the latents are {latents.shape[1]} x {latents.shape[2]}, but both sides must be "
            f"multiples of {multiple} for this denoiser"
        )


def enlarged(x: jax.Array) -> jax.Array:
    """Nearest-neighbour upsampling by 2 in height and width."""
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
