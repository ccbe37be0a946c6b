"""Token embedding, usable as output head too."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from models.errors import InputError
from models.layers.products import einsum_fp32


class Embedding(nnx.Module):
    """A table [vocab, dim] of token vectors; `axis` is what the first axis is called."""

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        *,
        axis: str = "vocab",
        stddev: float,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        values = stddev * jax.random.normal(rngs.params(), (vocab_size, dim), param_dtype)
        self.table = nnx.Param(values, axes=(axis, "dim"))

    def __call__(self, tokens: jax.Array, dtype: DTypeLike) -> jax.Array:
        """Vectors of tokens [B, T] in `dtype`: [B, T, dim]."""
        return jnp.take(self.table[...], tokens, axis=0).astype(dtype)

    def logits(self, x: jax.Array) -> jax.Array:
        """Scores of x [B, T, dim] against every token, FP32: [B, T, vocab]."""
        return einsum_fp32("btd,vd->btv", x, self.table[...].astype(x.dtype))


def in_front(x: jax.Array, *tokens: nnx.Param[jax.Array] | None) -> jax.Array:
    """x [B, T, dim] behind learnt tokens [..., dim], the same in every row; None is no token."""
    shape = (1, -1, x.shape[-1])
    own = (token[...].astype(x.dtype).reshape(shape) for token in tokens if token is not None)
    return jnp.concatenate([*(jnp.tile(token, (len(x), 1, 1)) for token in own), x], axis=1)


def check_length(length: int, longest: int) -> None:
    """Raises InputError if texts of `length` tokens outgrow a model with so many positions."""
    if length > longest:
        raise InputError(
            f"the text has {length} tokens, but the model's context is {longest}. Shorten the text."
        )
