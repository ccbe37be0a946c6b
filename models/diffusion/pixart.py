"""PixArt: a transformer over patches of latents that looks at the prompt (Chen et al.,
"PixArt-alpha", 2023, and "PixArt-sigma", 2024).

Axis names: B batch, N patches, T tokens of the prompt, D width, H and W of the latents, C channels.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.diffusion.blocks import check_latents, conv, linear
from models.diffusion.embeddings import Embedding, Modulation, modulated, waves
from models.diffusion.transformer_config import ACT, PixArtConfig
from models.errors import InputError

_WAVES = 256  # of the embeddings of time and size


class Block(nnx.Module):
    """x + gate · attention(y) + cross attention to the prompt, + gate · mlp(y), where y is x,
    modulated by the time and a table of the block's own."""

    def __init__(self, config: PixArtConfig, *, rngs: nnx.Rngs) -> None:
        self.eps = config.norm_eps
        self.table = _table(config, 6, rngs)
        self.attention = config.block.attention(rngs)
        self.cross_attention = config.block.attention(rngs)
        self.mlp = config.block.mlp(rngs)

    def __call__(
        self, x: jax.Array, context: jax.Array, mask: jax.Array | None, vectors: jax.Array
    ) -> jax.Array:
        """x [B, N, D], context [B, T, D], mask [B, 1, T], vectors [B, 6, D]."""
        parts = vectors + self.table[...].astype(x.dtype)
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = jnp.split(parts, 6, axis=1)
        x = x + gate * self.attention(modulated(x, shift, scale, self.eps))
        memory = self.cross_attention.memory(context)
        x = x + self.cross_attention.attend(x, memory, mask)
        return x + mlp_gate * self.mlp(modulated(x, mlp_shift, mlp_scale, self.eps))


class PixArt(nnx.Module):
    """Noisy latents to what the noise is, and perhaps its variance in further channels."""

    def __init__(self, config: PixArtConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        dim, dtype, patch = config.dim, config.param_dtype, config.patch_size
        self.patches = conv(
            config.in_channels, dim, patch, dtype, rngs, stride=patch, padding=(0, 0)
        )
        self.context = Embedding(config.context_dim, dim, dtype, act=ACT, rngs=rngs)
        self.time = Embedding(_WAVES, dim, dtype, rngs=rngs)
        self.size, self.ratio = (
            Embedding(_WAVES, dim // 3, dtype, rngs=rngs) if config.is_told_size else None
            for _ in range(2)
        )
        self.modulation = Modulation(dim, 6, dtype, rngs=rngs)
        self.blocks = nnx.List([Block(config, rngs=rngs) for _ in range(config.num_layers)])
        self.table = _table(config, 2, rngs)
        self.outwards = linear({"dim": dim}, {"patch": patch**2 * config.out_channels}, dtype, rngs)

    def __call__(
        self,
        latents: jax.Array,
        time: jax.Array,
        context: jax.Array,
        *,
        seen: jax.Array | None = None,
        ids: jax.Array | None = None,
        pooled: jax.Array | None = None,
        guidance: jax.Array | None = None,
    ) -> jax.Array:
        """The prediction [B, H, W, out_channels] of latents [B, H, W, C] at times [B], FP32.

        context [B, T, context_dim] are T5's vectors of the prompt; seen [B, T] is False at its
        padding. Large models need ids [B, 2…]: the image's height and width in pixels. `pooled` and
        `guidance` do not matter.
        """
        config = self.config
        check_latents(latents, config.in_channels, config.multiple)
        condition = self._condition(time, ids)
        x = self.patches(latents.astype(config.dtype))
        rows, columns, dim = x.shape[1:]
        x = x.reshape(len(x), -1, dim) + self._positions(rows, columns).astype(x.dtype)
        prompt = self.context(context.astype(config.dtype))
        vectors = jnp.concatenate(self.modulation(condition), axis=1)
        mask = None if seen is None else seen[:, None, :]
        for block in self.blocks:
            x = block(x, prompt, mask, vectors)
        ends = condition[:, None] + self.table[...].astype(x.dtype)
        y = self.outwards(modulated(x, ends[:, :1], ends[:, 1:]))
        patch = config.patch_size
        y = y.reshape(len(y), rows, columns, patch, patch, config.out_channels)
        y = y.transpose(0, 1, 3, 2, 4, 5)
        return y.reshape(*latents.shape[:3], config.out_channels).astype(jnp.float32)

    def _condition(self, time: jax.Array, ids: jax.Array | None) -> jax.Array:
        """Time and the size of the image as a vector [B, D]."""
        dtype = self.config.dtype
        condition = self.time(waves(time, _WAVES).astype(dtype))
        if self.size is None or self.ratio is None:
            return condition
        if ids is None:
            raise InputError("this denoiser needs the image size IDs")
        size, ratio = ids[:, :2], ids[:, :1] / ids[:, 1:2]
        embedded = [
            embedding(waves(numbers.reshape(-1), _WAVES).astype(dtype)).reshape(len(ids), -1)
            for embedding, numbers in ((self.size, size), (self.ratio, ratio))
        ]
        return condition + jnp.concatenate(embedded, axis=-1)

    def _positions(self, rows: int, columns: int) -> jax.Array:
        """Sines and cosines of column and row [N, D], as if the grid had the usual size."""
        config = self.config
        base = config.sample_size // config.patch_size
        row, column = jnp.divmod(jnp.arange(rows * columns, dtype=jnp.float32), columns)
        return jnp.concatenate(
            [
                waves(place * (base / count / config.stretch), config.dim // 2, cosine_first=False)
                for place, count in ((column, columns), (row, rows))
            ],
            axis=-1,
        )


def _table(config: PixArtConfig, count: int, rngs: nnx.Rngs) -> nnx.Param[jax.Array]:
    """Vectors [count, D] that are added to those of the time."""
    values = jax.random.normal(rngs.params(), (count, config.dim), config.param_dtype)
    return nnx.Param(values * config.dim**-0.5, axes=("parts", "dim"))
