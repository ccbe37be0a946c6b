"""Baevski et al., "wav2vec 2.0", 2020; Hsu et al., "HuBERT", 2021; Chen et al., "WavLM", 2022.

Axis names: B batch, N samples, T frames, C channels, D model width, K heads, H width of a head.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from models.errors import InputError
from models.layers.activations import activation
from models.layers.axes import fill_up
from models.layers.blocks import Block
from models.layers.convolution import LAYOUTS, Conv
from models.layers.factory import LayerFactory
from models.layers.masks import padding_mask
from models.layers.norms import GroupNorm, LayerNorm
from models.layers.relative import RelativeBias
from models.wav2vec2.adapters import BlockAdapter, OutputAdapter
from models.wav2vec2.config import SpeechConfig

_EPS = 1e-5  # of the norms between convolutions
_GATES, _OF_EACH = 2, 4  # the sums that gate a distance, and the products of each


class ConvLayer(nnx.Module):
    """act(norm(conv(x))); the norm may be missing."""

    def __init__(self, config: SpeechConfig, number: int, *, rngs: nnx.Rngs) -> None:
        channels = config.conv_channels[number]
        self.act = config.conv_act
        self.conv = LayerFactory.of(config, rngs).conv(
            config.conv_channels[number - 1] if number else 1,
            channels,
            (config.conv_windows[number],),
            stride=config.conv_strides[number],
            bias=config.conv_bias,
            axes=("channels", "residual"),
        )
        self.norm = _conv_norm(config, number)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.conv(x)
        return activation(self.act)(x if self.norm is None else self.norm(x))


def _conv_norm(config: SpeechConfig, number: int) -> LayerNorm | GroupNorm | None:
    """What stands behind the convolution of that number."""
    channels, dtype = config.conv_channels[number], config.param_dtype
    if config.conv_norm == "layer":
        return LayerNorm(channels, eps=_EPS, param_dtype=dtype)
    if number:
        return None
    return GroupNorm(channels, groups=channels, eps=_EPS, param_dtype=dtype)


class NormedConv(Conv):
    """A convolution whose kernel has the norm `scale` at each place of its window. Salimans and
    Kingma, "Weight Normalization", 2016."""

    def __init__(self, config: SpeechConfig, *, rngs: nnx.Rngs) -> None:
        window = config.position_window
        super().__init__(
            config.dim,
            config.dim,
            (window,),
            groups=config.position_groups,
            axes=("channels", "residual"),
            **LayerFactory.of(config, rngs).weights,
        )
        self.around = (window // 2, (window - 1) // 2)
        self.scale = (
            None
            if config.position_batch_norm
            else nnx.Param(
                _norms(self.kernel[...].astype(jnp.float32))[:, 0, 0].astype(config.param_dtype),
                axes=("window",),
            )
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """The convolution of x [B, T, D], one of each group: XLA's partitioner would double the
        gradients of a grouped one where a mesh splits the batch over one axis of several."""
        groups = self.groups
        parts = zip(
            jnp.split(x, groups, axis=-1),
            jnp.split(self._weights().astype(x.dtype), groups, axis=-1),
            strict=True,
        )
        convolved = [
            jax.lax.conv_general_dilated(
                part, kernel, (1,), [self.around], dimension_numbers=LAYOUTS[1]
            )
            for part, kernel in parts
        ]
        y = jnp.concatenate(convolved, axis=-1)
        return y if self.bias is None else y + self.bias[...].astype(x.dtype)

    def _weights(self) -> jax.Array:
        kernel = self.kernel[...]
        if self.scale is None:
            return kernel
        wide = kernel.astype(jnp.float32)
        scale = self.scale[...].astype(jnp.float32)[:, None, None]
        return (wide * (scale / _norms(wide))).astype(kernel.dtype)


def _norms(kernel: jax.Array) -> jax.Array:
    """The norm of the kernel at each place of the window, [window, 1, 1]."""
    return jnp.sqrt(jnp.sum(kernel * kernel, axis=(1, 2), keepdims=True))


class DistanceGate(nnx.Module):
    """How much of the bias of distances a frame takes. Chen et al., "WavLM", 2022."""

    def __init__(self, config: SpeechConfig, *, rngs: nnx.Rngs) -> None:
        self.num_heads = config.num_heads
        make, head_dim = LayerFactory.of(config, rngs), config.dim // config.num_heads
        self.linear = make.linear(head_dim, _GATES * _OF_EACH, axes=("head_dim", "gates"))
        self.scale = make.constant(1.0, heads=config.num_heads)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [B, T, D] -> factors FP32 [B, K, T, 1]."""
        heads = x.reshape(*x.shape[:2], self.num_heads, -1)
        products = self.linear(heads).astype(jnp.float32)
        sums = products.reshape(*products.shape[:-1], _GATES, _OF_EACH).sum(-1)
        gates = jax.nn.sigmoid(sums).transpose(0, 2, 1, 3)  # [B, K, T, 2]
        scale = self.scale[...].astype(jnp.float32)[:, None, None]
        gates = fill_up(gates, 1, len(scale))
        update, reset = gates[..., :1], gates[..., 1:]
        return update * (reset * scale - 1) + 2


class SpeechBlock(Block):
    """A block with a bias of distances that frames gate."""

    def __init__(self, config: SpeechConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config.block, rngs=rngs)
        self.gate = None if config.num_buckets is None else DistanceGate(config, rngs=rngs)
        width = config.block_adapter_dim
        self.adapter = None if width is None else BlockAdapter(config, width, rngs=rngs)

    def __call__(self, x: jax.Array, *others: Any, **named: Any) -> jax.Array:
        x = super().__call__(x, *others, **named)
        return x if self.adapter is None else x + self.adapter(x)

    def attend(
        self, x: jax.Array, mask: jax.Array | None = None, bias: jax.Array | None = None
    ) -> jax.Array:
        """Mask and bias as in `AttentionCall`."""
        if self.gate is not None and bias is not None:
            bias = self.gate(x) * bias
        return super().attend(x, mask, bias=bias)


class SpeechBackbone(nnx.Module):
    """Samples to frames by convolutions, then a transformer over the frames."""

    def __init__(self, config: SpeechConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        numbers = range(len(config.conv_channels))
        self.convolutions = nnx.List([ConvLayer(config, i, rngs=rngs) for i in numbers])
        channels = config.conv_channels[-1]
        make = LayerFactory.of(config, rngs)
        self.feature_norm = (
            make.layer_norm(channels, config.norm_eps) if config.feature_norm else None
        )
        self.projection = make.linear(channels, config.dim)
        self.position_norm = make.batch_norm(config.dim) if config.position_batch_norm else None
        self.position_conv = NormedConv(config, rngs=rngs)
        self.norm = config.block.norm()
        self.relative = (
            None
            if config.num_buckets is None
            else RelativeBias(
                config.num_heads,
                make,
                num_buckets=config.num_buckets,
                max_distance=config.max_distance,
                bidirectional=True,
            )
        )
        self.blocks = nnx.List([SpeechBlock(config, rngs=rngs) for _ in range(config.num_layers)])
        self.adapter = OutputAdapter(config, rngs=rngs) if config.output_adapter else None

    def layers(self, sounds: jax.Array, frames: jax.Array | None = None) -> list[jax.Array]:
        """What goes into the first block and what each puts out, [B, T, D]; before the last norm,
        where there is one. Of each sound the first `frames` [B] count: attention sees no others,
        and the convolution over frames sees zeros there."""
        shortest = self.config.shortest
        if sounds.ndim != 2 or sounds.shape[1] < shortest:
            raise InputError(
                f"the sounds have the shape {list(sounds.shape)}, but this model takes [B, N]: "
                f"batch and at least {shortest} samples"
            )
        x = sounds[..., None].astype(self.config.dtype)
        for layer in self.convolutions:
            x = layer(x)
        x = self.projection(x if self.feature_norm is None else self.feature_norm(x))
        mask = None
        if frames is not None:
            real = jnp.arange(x.shape[1]) < frames[:, None]
            x, mask = jnp.where(real[..., None], x, 0), padding_mask(real)
        normed = x if self.position_norm is None else self.position_norm(x)
        x = x + activation(self.config.conv_act)(self.position_conv(normed))
        states = [x if self.config.pre_norm else self.norm(x)]
        places = jnp.arange(x.shape[1])
        bias = None if self.relative is None else self.relative(places, places)
        for block in self.blocks:
            states.append(block(states[-1], mask, bias))
        return states

    def __call__(self, sounds: jax.Array, frames: jax.Array | None = None) -> jax.Array:
        """The last frames [B, T, D] of sounds [B, N], normed, or what the adapter makes of them;
        `frames` is that of `layers`."""
        last = self.layers(sounds, frames)[-1]
        last = self.norm(last) if self.config.pre_norm else last
        return last if self.adapter is None else self.adapter(last)
