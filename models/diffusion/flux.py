"""Flux: a transformer that reads the prompt and the patches of latents as one text (Black Forest
Labs, 2024; Esser et al., "Scaling Rectified Flow Transformers", 2024).

Axis names: B batch, N patches, T tokens of the prompt, D width, H and W of the latents, C channels.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from models.diffusion.blocks import check_latents, linear
from models.diffusion.embeddings import Embedding, Modulation, modulated, waves
from models.diffusion.transformer_config import FluxConfig
from models.errors import InputError
from models.layers.attention import Attention
from models.layers.cache import KVCache
from models.layers.linear import Linear
from models.layers.norms import RMSNorm
from models.layers.rotary import Rotary, Turn, turn

_WAVES = 256  # of the embeddings of time and guidance
_ROTARY = Rotary(theta=10_000.0)


class Stream(nnx.Module):
    """What a block has for the prompt, or for the image: modulation, attention, MLP."""

    def __init__(self, config: FluxConfig, *, rngs: nnx.Rngs) -> None:
        self.modulation = Modulation(config.dim, 6, config.param_dtype, rngs=rngs)
        self.attention = _attention(config, rngs, bias=True)
        self.mlp = config.block.mlp(rngs)


class JointBlock(nnx.Module):
    """Prompt and image look at both, by queries, keys and values of their own."""

    def __init__(self, config: FluxConfig, *, rngs: nnx.Rngs) -> None:
        self.image = Stream(config, rngs=rngs)
        self.text = Stream(config, rngs=rngs)

    def __call__(
        self, image: jax.Array, text: jax.Array, condition: jax.Array, turns: tuple[Turn, Turn]
    ) -> tuple[jax.Array, jax.Array]:
        """image [B, N, D], text [B, T, D], condition [B, D]; turns of the image, of the text."""
        streams = (self.image, self.text)
        vectors = [stream.modulation(condition) for stream in streams]
        seen = [
            modulated(x, vector[0], vector[1])
            for x, vector in zip((image, text), vectors, strict=True)
        ]
        memories = [
            stream.attention.memory(x, angles)
            for stream, x, angles in zip(streams, seen, turns, strict=True)
        ]
        both = KVCache(*(jnp.concatenate(pair, axis=1) for pair in zip(*memories, strict=True)))
        made = []
        for stream, old, x, vector, angles in zip(
            streams, (image, text), seen, vectors, turns, strict=True
        ):
            gate, shift, scale, mlp_gate = vector[2:]
            y = old + gate * stream.attention.attend(x, both, None, turn=angles)
            made.append(y + mlp_gate * stream.mlp(modulated(y, shift, scale)))
        image, text = made
        return image, text


class SingleBlock(nnx.Module):
    """x + gate · (attention(y) + mlp(y)), where y is x, modulated. One bias serves both."""

    def __init__(self, config: FluxConfig, *, rngs: nnx.Rngs) -> None:
        self.modulation = Modulation(config.dim, 3, config.param_dtype, rngs=rngs)
        self.attention = _attention(config, rngs, bias=False)
        self.mlp = config.block.mlp(rngs)

    def __call__(self, x: jax.Array, condition: jax.Array, turn: Turn) -> jax.Array:
        shift, scale, gate = self.modulation(condition)
        y = modulated(x, shift, scale)
        return x + gate * (self.attention(y, turn=turn) + self.mlp(y))


class Flux(nnx.Module):
    """Noisy latents to the direction from the clean ones to noise."""

    def __init__(self, config: FluxConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        dim, dtype = config.dim, config.param_dtype
        self.patches = linear({"patch": config.patch_channels}, {"residual": dim}, dtype, rngs)
        self.context = linear({"context": config.context_dim}, {"residual": dim}, dtype, rngs)
        self.time = Embedding(_WAVES, dim, dtype, rngs=rngs)
        self.guidance = (
            Embedding(_WAVES, dim, dtype, rngs=rngs) if config.is_told_guidance else None
        )
        self.pooled = Embedding(config.pooled_dim, dim, dtype, rngs=rngs)
        self.joint = nnx.List([JointBlock(config, rngs=rngs) for _ in range(config.num_layers)])
        self.single = nnx.List(
            [SingleBlock(config, rngs=rngs) for _ in range(config.num_single_layers)]
        )
        self.modulation = Modulation(dim, 2, dtype, rngs=rngs)
        self.outwards: Linear = linear({"dim": dim}, {"patch": config.patch_channels}, dtype, rngs)

    def __call__(
        self,
        latents: jax.Array,
        time: jax.Array,
        context: jax.Array,
        *,
        pooled: jax.Array | None = None,
        guidance: jax.Array | None = None,
        ids: jax.Array | None = None,
        seen: jax.Array | None = None,
    ) -> jax.Array:
        """The prediction [B, H, W, C] of latents [B, H, W, C] at times [B] from 0 to 1,000, FP32.

        context [B, T, context_dim] are T5's vectors of the prompt, padding among them; pooled
        [B, pooled_dim] is CLIP's. Models made with guidance need it, [B]. `ids` and `seen` do not
        matter.
        """
        config = self.config
        check_latents(latents, config.in_channels, config.multiple)
        condition = self._condition(time, pooled, guidance)
        image = self.patches(_pack(latents.astype(config.dtype)))
        text = self.context(context.astype(config.dtype))
        rows, columns = (size // config.multiple for size in latents.shape[1:3])
        text_turn, image_turn = self._turns(text.shape[1], rows, columns)
        for joint in self.joint:
            image, text = joint(image, text, condition, (image_turn, text_turn))
        length = text.shape[1]
        x = jnp.concatenate([text, image], axis=1)
        both = Turn(*(jnp.concatenate(pair) for pair in zip(text_turn, image_turn, strict=True)))
        for single in self.single:
            x = single(x, condition, both)
        scale, shift = self.modulation(condition)
        y = self.outwards(modulated(x[:, length:], shift, scale))
        return _unpack(y, rows, columns).astype(jnp.float32)

    def _condition(
        self, time: jax.Array, pooled: jax.Array | None, guidance: jax.Array | None
    ) -> jax.Array:
        """Time, guidance and pooled prompt as a vector [B, D]."""
        if pooled is None:
            raise InputError("this denoiser needs the pooled prompt embedding")
        dtype = self.config.dtype
        condition = self.time(waves(time, _WAVES).astype(dtype)) + self.pooled(pooled.astype(dtype))
        if self.guidance is None:
            return condition
        if guidance is None:
            raise InputError("this denoiser needs the guidance scale")
        return condition + self.guidance(waves(1000 * guidance, _WAVES).astype(dtype))

    def _turns(self, length: int, rows: int, columns: int) -> tuple[Turn, Turn]:
        """The rotations of the prompt's tokens, all at the origin, and of the image's patches."""
        row, column = jnp.divmod(jnp.arange(rows * columns), columns)
        nowhere = jnp.zeros(length, row.dtype)
        return (
            self._turn((nowhere, nowhere, nowhere)),
            self._turn((jnp.zeros_like(row), row, column)),
        )

    def _turn(self, places: tuple[jax.Array, ...]) -> Turn:
        """The rotations for places [N] along every axis: each axis turns a part of the pairs."""
        turns = [
            turn(place, width, _ROTARY)
            for place, width in zip(places, self.config.rotary_widths, strict=True)
        ]
        return Turn(*(jnp.concatenate(parts, axis=-1) for parts in zip(*turns, strict=True)))


def _pack(latents: jax.Array) -> jax.Array:
    """Latents [B, H, W, C] as patches [B, H/2 · W/2, C · 4]."""
    batch, height, width, channels = latents.shape
    x = latents.reshape(batch, height // 2, 2, width // 2, 2, channels)
    return x.transpose(0, 1, 3, 5, 2, 4).reshape(batch, -1, channels * 4)


def _unpack(patches: jax.Array, rows: int, columns: int) -> jax.Array:
    """The inverse of `_pack`."""
    batch, _, channels = patches.shape
    x = patches.reshape(batch, rows, columns, channels // 4, 2, 2)
    return x.transpose(0, 1, 4, 2, 5, 3).reshape(batch, 2 * rows, 2 * columns, channels // 4)


def _attention(config: FluxConfig, rngs: nnx.Rngs, *, bias: bool) -> Attention:
    """`bias` is that of the output."""
    norm = partial(RMSNorm, eps=config.norm_eps, axis="head_dim", param_dtype=config.param_dtype)
    shape = replace(config.block, out_bias=bias)
    return shape.attention(rngs, head_norm=lambda heads: norm(config.head_dim))
