"""Liu et al., "A ConvNet for the 2020s", 2022; Woo et al., "ConvNeXt V2", 2023.

Axis names: B batch, H height, W width, C channels, L labels.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.convnext.config import ConvNextConfig
from models.layers.activations import activation
from models.layers.axes import make_bias
from models.layers.classifier import classify
from models.layers.convolution import Conv
from models.layers.feature_map import FeatureMap
from models.layers.linear import Linear
from models.layers.norms import LayerNorm
from models.layers.pixels import check_pixels

_EPS = 1e-6  # of all norms but the last
_WINDOW = 7
_WIDER = 4  # by which a block is wider inside
_LAYER_SCALE = 1e-6  # at the start


class ResponseNorm(nnx.Module):
    """y = x + scale · x · |x| / mean(|x|) + bias, where |x| is a channel's norm over the image."""

    def __init__(self, channels: int, *, param_dtype: str) -> None:
        self.scale = nnx.Param(jnp.zeros((channels,), param_dtype), axes=("hidden_dim",))
        self.bias = make_bias({"hidden_dim": channels}, param_dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        x32 = x.astype(jnp.float32)
        size = jnp.sqrt(jnp.sum(x32 * x32, axis=(1, 2), keepdims=True))
        relative = size / (jnp.mean(size, axis=-1, keepdims=True) + _EPS)
        scale, bias = (part[...].astype(jnp.float32) for part in (self.scale, self.bias))
        return (x32 + scale * (x32 * relative) + bias).astype(x.dtype)


class Block(nnx.Module):
    """x + layer_scale · down(response_norm(act(up(norm(depthwise(x))))))."""

    def __init__(self, config: ConvNextConfig, channels: int, *, rngs: nnx.Rngs) -> None:
        outside, inside = {"dim": channels}, {"hidden_dim": _WIDER * channels}

        def linear(in_axes: dict[str, int], out_axes: dict[str, int]) -> Linear:
            return Linear(
                in_axes,
                out_axes,
                bias=True,
                stddev=config.initializer_range,
                param_dtype=config.param_dtype,
                rngs=rngs,
            )

        self.act = config.act
        self.depthwise = Conv(
            channels,
            channels,
            (_WINDOW, _WINDOW),
            padding=_WINDOW // 2,
            groups=channels,
            axes=("channels", "residual"),
            stddev=config.initializer_range,
            param_dtype=config.param_dtype,
            rngs=rngs,
        )
        self.norm = LayerNorm(channels, eps=_EPS, param_dtype=config.param_dtype)
        self.up = linear(outside, inside)
        self.response_norm = (
            ResponseNorm(_WIDER * channels, param_dtype=config.param_dtype)
            if config.response_norm
            else None
        )
        self.down = linear(inside, outside)
        self.layer_scale = (
            nnx.Param(jnp.full((channels,), _LAYER_SCALE, config.param_dtype), axes=("residual",))
            if config.layer_scale
            else None
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        y = activation(self.act)(self.up(self.norm(self.depthwise(x))))
        y = self.down(y if self.response_norm is None else self.response_norm(y))
        return x + (y if self.layer_scale is None else y * self.layer_scale[...].astype(y.dtype))


class Stage(nnx.Module):
    """A norm and a convolution that halves the image, unless it is the first; then blocks."""

    def __init__(
        self, config: ConvNextConfig, channels: tuple[int, int], depth: int, *, rngs: nnx.Rngs
    ) -> None:
        before, width = channels
        is_first = before == 0
        self.norm = (
            None if is_first else LayerNorm(before, eps=_EPS, param_dtype=config.param_dtype)
        )
        self.resize = None if is_first else _patches(config, before, width, (2, 2), rngs)
        self.blocks = nnx.List([Block(config, width, rngs=rngs) for _ in range(depth)])

    def __call__(self, x: jax.Array) -> jax.Array:
        if self.norm is not None and self.resize is not None:
            x = self.resize(self.norm(x))
        for block in self.blocks:
            x = block(x)
        return x


class ConvNext(nnx.Module):
    """Images to feature maps, and to logits if the config has labels."""

    def __init__(self, config: ConvNextConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        widths, dtype = config.stage_channels, config.param_dtype
        self.patches = _patches(config, config.num_channels, widths[0], config.patch_size, rngs)
        self.patch_norm = LayerNorm(widths[0], eps=_EPS, param_dtype=dtype)
        pairs = zip((0, *widths), widths, strict=False)
        self.stages = nnx.List(
            [
                Stage(config, pair, depth, rngs=rngs)
                for pair, depth in zip(pairs, config.depths, strict=True)
            ]
        )
        self.norm = LayerNorm(widths[-1], eps=config.norm_eps, param_dtype=dtype)
        self.classifier = (
            None
            if config.num_labels is None
            else Linear(
                {"dim": widths[-1]},
                {"label": config.num_labels},
                bias=True,
                stddev=config.initializer_range,
                param_dtype=dtype,
                rngs=rngs,
            )
        )

    def __call__(self, pixels: jax.Array) -> jax.Array:
        """Logits [B, L] of pixels [B, H, W, C], FP32."""
        return classify(self.classifier, self.features(pixels).pooled)

    def features(self, pixels: jax.Array) -> FeatureMap:
        """The features of pixels [B, H, W, C] of any size; the pooled ones are normed."""
        check_pixels(pixels, None, self.config.num_channels)
        x = self.patch_norm(self.patches(pixels.astype(self.config.dtype)))
        for stage in self.stages:
            x = stage(x)
        pooled = jnp.mean(x.astype(jnp.float32), axis=(1, 2)).astype(x.dtype)
        return FeatureMap(x, self.norm(pooled))


def _patches(
    config: ConvNextConfig,
    in_channels: int,
    out_channels: int,
    window: tuple[int, int],
    rngs: nnx.Rngs,
) -> Conv:
    """A convolution whose windows do not overlap."""
    return Conv(
        in_channels,
        out_channels,
        window,
        stride=window,
        stddev=config.initializer_range,
        param_dtype=config.param_dtype,
        rngs=rngs,
    )
