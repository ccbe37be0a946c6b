"""Convolution over one or two axes, channels last."""

from collections.abc import Mapping, Sequence
from typing import Literal

import jax
from flax import nnx
from jax.typing import DTypeLike

from models.layers.axes import make_bias

# Axes of input, kernel and output, by the number of axes that the window moves along.
LAYOUTS: Mapping[int, tuple[str, str, str]] = {
    1: ("NWC", "WIO", "NWC"),
    2: ("NHWC", "HWIO", "NHWC"),
}
# Names of the window's axes in a kernel, by their number.
WINDOW_AXES: Mapping[int, tuple[str, ...]] = {1: ("window",), 2: ("height", "width")}


Padding = int | tuple[int, int] | Literal["SAME"]
"""Zeros on both sides of an axis; "SAME" = as few as needed, the odd one behind, so that the size
is divided by the stride and rounded up."""


class Conv(nnx.Module):
    """y[b, p, o] = Σ x[b, stride · p - padding + dilation · w, i] · kernel[w, i, o] (+ bias[o]).

    x [B, *space, in_channels] -> [B, *space', out_channels]; the kernel is
    [*window, in_channels / groups, out_channels], and i runs over the channels of o's group. Zeros
    pad every axis of the space: as many on both sides, or as a pair of numbers says. `axes` are
    what the axes of channels before and after are called.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        window: Sequence[int],
        *,
        stride: int | Sequence[int] = 1,
        dilation: int = 1,
        padding: Padding = 0,
        groups: int = 1,
        bias: bool = True,
        axes: tuple[str, str] = ("channels", "dim"),
        stddev: float,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        axes_moved = len(window)
        self.stride = (stride,) * axes_moved if isinstance(stride, int) else tuple(stride)
        self.padding = (padding, padding) if isinstance(padding, int) else padding
        self.groups, self.dilation = groups, dilation
        shape = (*window, in_channels // groups, out_channels)
        self.kernel = nnx.Param(
            stddev * jax.random.normal(rngs.params(), shape, param_dtype),
            axes=(*WINDOW_AXES[axes_moved], *axes),
        )
        self.bias = make_bias({axes[1]: out_channels}, param_dtype) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.convolve(x, self.kernel[...])

    def convolve(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        """The convolution of x with a kernel of the shape of its own."""
        y = jax.lax.conv_general_dilated(
            x,
            kernel.astype(x.dtype),
            self.stride,
            self.padding if self.padding == "SAME" else [self.padding] * len(self.stride),
            rhs_dilation=(self.dilation,) * len(self.stride),
            dimension_numbers=LAYOUTS[len(self.stride)],
            feature_group_count=self.groups,
        )
        return y if self.bias is None else y + self.bias[...].astype(x.dtype)
