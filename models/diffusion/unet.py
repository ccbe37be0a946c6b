"""The denoiser: a U-Net whose levels look at the prompt.

Ronneberger et al., "U-Net", 2015; Rombach et al., "High-Resolution Image Synthesis with Latent
Diffusion Models", 2022; Podell et al., "SDXL", 2023. Axis names: B batch, H height, W width,
C channels, T tokens of the prompt, P width of the pooled prompt.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from models.diffusion.blocks import (
    ENDS,
    STDDEV,
    ResidualBlock,
    check_latents,
    conv,
    enlarged,
    linear,
)
from models.diffusion.config import ImagePrompts, UNetConfig
from models.diffusion.embeddings import Embedding, waves
from models.errors import InputError
from models.layers.attention import Attention
from models.layers.cache import KVCache
from models.layers.factory import LayerFactory
from models.layers.mlp import GatedMLP
from models.layers.norms import GroupNorm, LayerNorm

_LAYER_EPS, _GROUP_EPS = 1e-5, 1e-6  # of the norms inside and before attention


class Context(NamedTuple):
    """What a denoiser looks at."""

    prompt: jax.Array  # [B, T, context_dim]
    image: jax.Array | None = None  # [B, S, context_dim]
    share: jax.Array | float = 1.0  # the factor of what is seen of the image


class ImageTokens(nnx.Module):
    """The vector of an image as tokens of a prompt: norm(projection(x))."""

    def __init__(
        self, prompts: ImagePrompts, context_dim: int, param_dtype: str, *, rngs: nnx.Rngs
    ) -> None:
        tokens = {"tokens": prompts.tokens, "context": context_dim}
        self.projection = linear({"image": prompts.dim}, tokens, param_dtype, rngs)
        self.norm = LayerNorm(context_dim, eps=_LAYER_EPS, param_dtype=param_dtype)

    def __call__(self, vectors: jax.Array) -> jax.Array:
        """[B, dim] -> [B, tokens, context_dim]."""
        return self.norm(self.projection(vectors))


class ImageMemory(nnx.Module):
    """Keys and values of an image's tokens, which queries of the prompt's attention look at."""

    def __init__(
        self, context_dim: int, heads: int, head_dim: int, param_dtype: str, *, rngs: nnx.Rngs
    ) -> None:
        make = LayerFactory(STDDEV, param_dtype, rngs)
        before, after = {"dim": context_dim}, {"kv_heads": heads, "head_dim": head_dim}
        self.key, self.value = (make.dense(before, after, bias=False) for _ in range(2))

    def __call__(self, tokens: jax.Array) -> KVCache:
        return KVCache(self.key(tokens), self.value(tokens))


class TransformerBlock(nnx.Module):
    """x + attention(norm(x)), + cross attention to the prompt, + mlp(norm(x))."""

    def __init__(self, config: UNetConfig, dim: int, heads: int, *, rngs: nnx.Rngs) -> None:
        dtype = config.param_dtype
        weights = {"out_stddev": STDDEV, **LayerFactory(STDDEV, dtype, rngs).weights}

        def norm() -> LayerNorm:
            return LayerNorm(dim, eps=_LAYER_EPS, param_dtype=dtype)

        def attention(memory_dim: int | None) -> Attention:
            return Attention(
                dim,
                num_heads=heads,
                num_kv_heads=heads,
                head_dim=dim // heads,
                memory_dim=memory_dim,
                out_bias=True,
                **weights,
            )

        self.attention_norm, self.attention = norm(), attention(None)
        self.cross_attention_norm = norm()
        self.cross_attention = attention(config.context_dim)
        self.image_memory = (
            None
            if config.image_prompts is None
            else ImageMemory(config.context_dim, heads, dim // heads, dtype, rngs=rngs)
        )
        self.mlp_norm = norm()
        self.mlp = GatedMLP(dim, 4 * dim, act="gelu", bias=True, **weights)

    def __call__(self, x: jax.Array, context: Context) -> jax.Array:
        """x [B, H · W, C]."""
        x = x + self.attention(self.attention_norm(x))
        x = x + self.cross_attention.attend(
            self.cross_attention_norm(x),
            self.cross_attention.memory(context.prompt),
            None,
            beside=self._image(context),
            share=context.share,
        )
        return x + self.mlp(self.mlp_norm(x))

    def _image(self, context: Context) -> KVCache | None:
        if self.image_memory is None or context.image is None:
            return None
        return self.image_memory(context.image)


class SpatialTransformer(nnx.Module):
    """Transformer blocks over the places of an image, added to it."""

    def __init__(self, config: UNetConfig, level: int, *, rngs: nnx.Rngs) -> None:
        dim, dtype = config.channels[level], config.param_dtype
        self.norm = GroupNorm(dim, groups=config.groups, eps=_GROUP_EPS, param_dtype=dtype)
        outside, inside = {"dim": dim}, {"residual": dim}
        self.inwards = linear(outside, inside, dtype, rngs)
        self.blocks = nnx.List(
            [
                TransformerBlock(config, dim, config.heads[level], rngs=rngs)
                for _ in range(config.depths[level])
            ]
        )
        self.outwards = linear(outside, inside, dtype, rngs)

    def __call__(self, x: jax.Array, context: Context) -> jax.Array:
        y = self.inwards(self.norm(x).reshape(len(x), -1, x.shape[-1]))
        for block in self.blocks:
            y = block(y, context)
        return x + self.outwards(y).reshape(x.shape)


class Level(nnx.Module):
    """Residual blocks, each followed by attention if the level has it; then the size changes."""

    def __init__(
        self,
        config: UNetConfig,
        level: int,
        in_channels: list[int],  # of each residual block
        *,
        attention: bool,
        stride: int | None,  # of the convolution that ends the level; None = there is none
        rngs: nnx.Rngs,
    ) -> None:
        width = config.channels[level]
        self.residuals = nnx.List(
            [_residual(config, channels, width, rngs) for channels in in_channels]
        )
        self.attentions = (
            nnx.List([SpatialTransformer(config, level, rngs=rngs) for _ in in_channels])
            if attention
            else None
        )
        self.resize = (
            None
            if stride is None
            else conv(width, width, 3, config.param_dtype, rngs, stride=stride)
        )

    def layer(self, i: int, x: jax.Array, time: jax.Array, context: Context) -> jax.Array:
        """Residual block i and its attention."""
        x = self.residuals[i](x, time)
        return x if self.attentions is None else self.attentions[i](x, context)


class Middle(nnx.Module):
    """The coarsest level's residual block, attention and residual block."""

    def __init__(self, config: UNetConfig, *, rngs: nnx.Rngs) -> None:
        width = config.channels[-1]
        self.residuals = nnx.List([_residual(config, width, width, rngs) for _ in range(2)])
        self.attention = SpatialTransformer(config, len(config.channels) - 1, rngs=rngs)

    def __call__(self, x: jax.Array, time: jax.Array, context: Context) -> jax.Array:
        before, after = self.residuals
        return after(self.attention(before(x, time), context), time)


class Control(NamedTuple):
    """What a ControlNet adds to a denoiser: to what is handed over, and at the coarsest level."""

    skips: list[jax.Array]
    middle: jax.Array


class Descent(nnx.Module):
    """The first half of the denoiser: from latents to the coarsest level."""

    def __init__(self, config: UNetConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        widths, dtype = config.channels, config.param_dtype
        self.time_embedding = Embedding(
            widths[0], config.time_dim, dtype, condition_dim=config.guidance_dim, rngs=rngs
        )
        self.ids_embedding = (
            None
            if config.time_ids is None
            else Embedding(config.time_ids.input_dim, config.time_dim, dtype, rngs=rngs)
        )
        self.conv_in = conv(config.in_channels, widths[0], 3, dtype, rngs, axes=ENDS)
        self.down = nnx.List([_down(config, level, rngs) for level in range(len(widths))])
        self.middle = Middle(config, rngs=rngs)

    def descend(
        self, x: jax.Array, emb: jax.Array, context: Context
    ) -> tuple[jax.Array, list[jax.Array]]:
        """What the coarsest level makes of x [B, H, W, channels[0]], and what is handed over on the
        way down."""
        handed = [x]
        for level in self.down:
            for i in range(len(level.residuals)):
                x = level.layer(i, x, emb, context)
                handed.append(x)
            if level.resize is not None:
                x = level.resize(x)
                handed.append(x)
        return self.middle(x, emb, context), handed

    def _waves(self, numbers: jax.Array, dim: int) -> jax.Array:
        config = self.config
        ordered = waves(
            numbers, dim, cosine_first=config.cosine_first, shift=config.frequency_shift
        )
        return ordered.astype(config.dtype)

    def embed(
        self,
        time: jax.Array,
        pooled: jax.Array | None,
        ids: jax.Array | None,
        guidance: jax.Array | None,
    ) -> jax.Array:
        """The embedding of time, and of what else the model takes [B, time_dim]."""
        config = self.config
        condition = None
        if config.guidance_dim is not None:
            if guidance is None:
                raise InputError("this denoiser needs the guidance scale")
            condition = _guidance_waves(guidance, config.guidance_dim).astype(config.dtype)
        embedded = self.time_embedding(self._waves(time, config.channels[0]), condition)
        if config.time_ids is None or self.ids_embedding is None:
            return embedded
        if pooled is None or ids is None:
            raise InputError(
                "this denoiser needs the pooled prompt embedding and the image size IDs"
            )
        waves = self._waves(ids.reshape(-1), config.time_ids.dim).reshape(len(ids), -1)
        everything = jnp.concatenate([pooled.astype(config.dtype), waves], axis=-1)
        return embedded + self.ids_embedding(everything)


class UNet(Descent):
    """Noisy latents to what the noise is (or whatever the schedule has the model predict)."""

    def __init__(self, config: UNetConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        widths, dtype = config.channels, config.param_dtype
        skips = skip_channels(config)
        self.image_tokens = (
            None
            if config.image_prompts is None
            else ImageTokens(config.image_prompts, config.context_dim, dtype, rngs=rngs)
        )
        self.up = nnx.List(
            [_up(config, level, skips, rngs) for level in reversed(range(len(widths)))]
        )
        self.norm = GroupNorm(
            widths[0], groups=config.groups, eps=config.norm_eps, param_dtype=dtype
        )
        self.conv_out = conv(widths[0], config.out_channels, 3, dtype, rngs, axes=ENDS)

    def __call__(
        self,
        latents: jax.Array,
        time: jax.Array,
        context: jax.Array,
        *,
        pooled: jax.Array | None = None,
        ids: jax.Array | None = None,
        guidance: jax.Array | None = None,
        seen: jax.Array | None = None,
        control: Control | None = None,
        image: jax.Array | None = None,
        share: jax.Array | float = 1.0,
    ) -> jax.Array:
        """The prediction [B, H, W, C] of latents [B, H, W, C] at times [B], FP32.

        context [B, T, context_dim] are the embeddings of the prompt. SDXL also needs the pooled
        prompt [B, P] and the ids [B, 6]: original height and width, top and left of the crop,
        target height and width; its refiner a score instead of the latter two [B, 5]. LCM follows
        guidance [B] by itself. `seen` [B, T] does not matter; `control` is what a ControlNet says.
        A denoiser with image prompts looks at the vectors of images [B, dim], too, whose factor is
        `share`.
        """
        config = self.config
        check_latents(latents, config.in_channels, config.multiple)
        emb = self.embed(time, pooled, ids, guidance)
        looked_at = Context(context.astype(config.dtype), self._tokens_of(image), share)
        x, skips = self.descend(self.conv_in(latents.astype(config.dtype)), emb, looked_at)
        if control is not None:
            x = x + control.middle
            skips = [skip + more for skip, more in zip(skips, control.skips, strict=True)]
        for level in self.up:
            for i in range(len(level.residuals)):
                x = level.layer(i, jnp.concatenate([x, skips.pop()], axis=-1), emb, looked_at)
            x = x if level.resize is None else level.resize(enlarged(x))
        return self.conv_out(jax.nn.silu(self.norm(x))).astype(jnp.float32)

    def _tokens_of(self, image: jax.Array | None) -> jax.Array | None:
        if self.image_tokens is None or image is None:
            return None
        return self.image_tokens(image.astype(self.config.dtype))


def _guidance_waves(guidance: jax.Array, dim: int) -> jax.Array:
    """Sines and cosines of guidance [B], FP32 [B, dim]: Kingma et al., "Variational Diffusion
    Models", 2021, as LCM uses them."""
    ordered = waves(1000 * (guidance - 1), dim, cosine_first=False, shift=1.0)
    return jnp.pad(ordered, ((0, 0), (0, dim % 2)))


def _residual(config: UNetConfig, in_channels: int, channels: int, rngs: nnx.Rngs) -> ResidualBlock:
    return ResidualBlock(
        in_channels,
        channels,
        time_dim=config.time_dim,
        groups=config.groups,
        eps=config.norm_eps,
        param_dtype=config.param_dtype,
        rngs=rngs,
    )


def _down(config: UNetConfig, level: int, rngs: nnx.Rngs) -> Level:
    width, before = config.channels[level], config.channels[max(level - 1, 0)]
    last = level == len(config.channels) - 1
    return Level(
        config,
        level,
        [before, *[width] * (config.layers - 1)],
        attention=config.down_attention[level],
        stride=None if last else 2,
        rngs=rngs,
    )


def skip_channels(config: UNetConfig) -> list[int]:
    """Channels of everything that the way down hands over to the way up, in order."""
    handed = [config.channels[0]]
    for width in config.channels:
        handed += [width] * (config.layers + 1)
    return handed[:-1]  # the coarsest level is not made smaller


def _up(config: UNetConfig, level: int, skips: list[int], rngs: nnx.Rngs) -> Level:
    """Takes the channels that it is handed over from the end of `skips`."""
    width, levels = config.channels[level], len(config.channels)
    before = config.channels[min(level + 1, levels - 1)]
    arriving = [before, *[width] * config.layers]
    return Level(
        config,
        level,
        [channels + skips.pop() for channels in arriving],
        attention=config.up_attention[level],
        stride=None if level == 0 else 1,
        rngs=rngs,
    )
