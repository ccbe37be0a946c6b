"""Convolutions and linear maps followed by batch norms, and the block that small networks make of
three."""

from collections.abc import Callable

import jax
from flax import nnx

from models.layers.activations import activation
from models.layers.axes import VECTOR_AXES
from models.layers.convolution import Conv, Padding
from models.layers.linear import Linear
from models.layers.norms import BatchNorm


class ConvNorm(nnx.Module):
    """act(norm(convolution(x))): a convolution without bias, a batch norm, an activation if any.

    Zeros pad the image so that it keeps its size up to the stride, unless `padding` says otherwise.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        window: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        padding: Padding | None = None,
        act: str | None = None,
        eps: float = 1e-5,
        momentum: float = 0.1,
        axes: tuple[str, str] = ("channels", "split_channels"),
        stddev: float,
        param_dtype: str,
        rngs: nnx.Rngs,
    ) -> None:
        self.act = act
        self.convolution = Conv(
            in_channels,
            out_channels,
            (window, window),
            stride=stride,
            dilation=dilation,
            padding=window // 2 * dilation if padding is None else padding,
            groups=groups,
            bias=False,
            axes=axes,
            stddev=stddev,
            param_dtype=param_dtype,
            rngs=rngs,
        )
        self.norm = BatchNorm(
            out_channels,
            eps=eps,
            momentum=momentum,
            axis=_axis_of_norm(axes),
            param_dtype=param_dtype,
        )

    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        x = self.norm(self.convolution(x), train=train)
        return x if self.act is None else activation(self.act)(x)


class LinearNorm(nnx.Module):
    """norm(linear(x)): a linear map without bias and a batch norm."""

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        *,
        axes: tuple[str, str] = ("dim", "split_channels"),
        stddev: float,
        param_dtype: str,
        rngs: nnx.Rngs,
    ) -> None:
        self.linear = Linear(
            {axes[0]: in_dim},
            {axes[1]: out_dim},
            stddev=stddev,
            param_dtype=param_dtype,
            rngs=rngs,
        )
        self.norm = BatchNorm(out_dim, axis=_axis_of_norm(axes), param_dtype=param_dtype)

    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        return self.norm(self.linear(x), train=train)


def _axis_of_norm(axes: tuple[str, str]) -> str:
    return VECTOR_AXES.get(axes[1], axes[1])


def rounded(channels: float, multiple: int, least: int) -> int:
    """Channels as a multiple, at least 90 % of what was wanted and no fewer than `least`."""
    nearest = max(least, int(channels + multiple / 2) // multiple * multiple)
    return nearest + multiple if nearest < 0.9 * channels else nearest


class InvertedResidual(nnx.Module):
    """A narrow image becomes wide, each channel is convolved by itself, and it becomes narrow
    again; with the same image added if the size stays. Sandler et al., "MobileNetV2", 2018.

    `conv_norm` makes a ConvNorm of channels before and after, a window and settings; `channels` are
    those before, inside and after.
    """

    def __init__(
        self,
        conv_norm: Callable[..., ConvNorm],
        channels: tuple[int, int, int],
        *,
        stride: int,
        dilation: int,
        act: str,
    ) -> None:
        before, wide, after = channels
        self.has_shortcut = stride == 1 and before == after
        self.expand = conv_norm(before, wide, 1, axes=("dim", "split_channels"), act=act)
        self.depthwise = conv_norm(
            wide, wide, 3, stride=stride, dilation=dilation, groups=wide, act=act
        )
        self.reduce = conv_norm(wide, after, 1, axes=("split_channels", "dim"))

    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        y = self.depthwise(self.expand(x, train=train), train=train)
        y = self.reduce(y, train=train)
        return x + y if self.has_shortcut else y
