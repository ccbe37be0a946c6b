"""Llama-style decoder (Touvron et al., 2023): pre-norm blocks of attention and SwiGLU.

Axis names: B batch, T positions, S cache slots, D model width, V vocabulary.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike

from models.layers.attention import Attention, KVCache, causal_mask
from models.layers.embedding import Embedding
from models.layers.mlp import SwiGLU
from models.layers.norms import RMSNorm
from models.layers.rotary import rotary_angles
from models.llama.config import LlamaConfig


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs) -> None:
        dim, param_dtype = config.dim, config.param_dtype
        stddev = config.initializer_range
        # Every block adds twice to the residual stream; this keeps the sum's variance at one
        # block's (GPT-2, Radford et al., 2019).
        out_stddev = stddev / (2 * config.num_layers) ** 0.5
        self.attention_norm = RMSNorm(dim, eps=config.norm_eps, param_dtype=param_dtype)
        self.attention = Attention(
            dim,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            stddev=stddev,
            out_stddev=out_stddev,
            param_dtype=param_dtype,
            rngs=rngs,
        )
        self.mlp_norm = RMSNorm(dim, eps=config.norm_eps, param_dtype=param_dtype)
        self.mlp = SwiGLU(
            dim,
            config.hidden_dim,
            stddev=stddev,
            out_stddev=out_stddev,
            param_dtype=param_dtype,
            rngs=rngs,
        )

    def __call__(
        self,
        x: jax.Array,
        angles: jax.Array,
        mask: jax.Array,
        cache: KVCache | None,
        start: ArrayLike,
    ) -> tuple[jax.Array, KVCache | None]:
        attended, cache = self.attention(self.attention_norm(x), angles, mask, cache, start)
        x = x + attended
        return x + self.mlp(self.mlp_norm(x)), cache


class Llama(nnx.Module):
    """Tokens [B, T] to next-token logits [B, T, V] in FP32."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config

        def embedding() -> Embedding:
            return Embedding(
                config.vocab_size,
                config.dim,
                stddev=config.initializer_range,
                param_dtype=config.param_dtype,
                rngs=rngs,
            )

        self.embedding = embedding()
        self.blocks = nnx.List([Block(config, rngs=rngs) for _ in range(config.num_layers)])
        self.norm = RMSNorm(config.dim, eps=config.norm_eps, param_dtype=config.param_dtype)
        self.head = None if config.tie_embeddings else embedding()

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits [B, T, V] of whole sequences, tokens [B, T] at positions 0 … T - 1."""
        logits, _ = self._run(tokens, [None] * len(self.blocks), tokens.shape[1], 0)
        return logits

    def extend(
        self, tokens: jax.Array, cache: Sequence[KVCache], start: ArrayLike
    ) -> tuple[jax.Array, list[KVCache]]:
        """Logits [B, T, V] of tokens [B, T] at positions start … start + T - 1, seeing what the
        cache holds of positions before `start`; and the cache with these tokens added.

        start + T must not exceed the cache's length.
        """
        logits, extended = self._run(tokens, cache, cache[0].keys.shape[1], start)
        return logits, [layer for layer in extended if layer is not None]

    def init_cache(self, batch: int, length: int) -> list[KVCache]:
        """An empty cache of `length` slots for `batch` sequences, one entry per block."""
        config = self.config
        zeros = jnp.zeros((batch, length, config.num_kv_heads, config.head_dim), config.dtype)
        return [KVCache(zeros, zeros) for _ in range(config.num_layers)]

    def _run(
        self,
        tokens: jax.Array,
        caches: Sequence[KVCache | None],
        num_keys: int,
        start: ArrayLike,
    ) -> tuple[jax.Array, list[KVCache | None]]:
        positions = start + jnp.arange(tokens.shape[1])
        angles = rotary_angles(positions, self.config.head_dim, self.config.rope_theta)
        mask = causal_mask(positions, jnp.arange(num_keys))
        x = self.embedding(tokens, self.config.dtype)  # [B, T, D]
        extended = []
        for block, cache in zip(self.blocks, caches, strict=True):
            x, cache = block(x, angles, mask, cache, start)
            extended.append(cache)
        head = self.embedding if self.head is None else self.head
        return head.logits(self.norm(x)), extended
