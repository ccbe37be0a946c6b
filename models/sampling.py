"""Sampling of the next token from logits."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from models.errors import GenerationError


@dataclass(frozen=True)
class Sampling:
    """How a token is sampled: temperature, top-k, top-p and min-p, applied in this order.

    Raises GenerationError if a field is out of range.
    """

    temperature: float = 1.0  # divides the logits; 0 always takes the most likely token
    top_k: int = 0  # draw from the k most likely tokens only; 0 = all
    top_p: float = 1.0  # draw from the fewest most likely tokens whose probability reaches this
    min_p: float = 0.0  # draw from tokens with at least this share of the likeliest one's

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise GenerationError(
                f"temperature={self.temperature} is not a number from 0 upwards; use 0 for greedy "
                "decoding"
            )
        if self.top_k < 0:
            raise GenerationError(f"top_k={self.top_k} is negative; use 0 for no limit")
        if not 0 < self.top_p <= 1:
            raise GenerationError(f"top_p={self.top_p} is not in (0, 1]; use 1 for no limit")
        if not 0 <= self.min_p <= 1:
            raise GenerationError(f"min_p={self.min_p} is not in [0, 1]; use 0 for no limit")


def sample(logits: jax.Array, key: jax.Array, sampling: Sampling) -> jax.Array:
    """A token per row: logits [B, V] -> int32 [B]. Tokens that tie at a cutoff are all kept."""
    if sampling.temperature == 0:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    logits = logits.astype(jnp.float32) / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        best, _ = jax.lax.top_k(logits, sampling.top_k)
        logits = jnp.where(logits < best[:, -1:], -jnp.inf, logits)
    if sampling.top_p < 1:
        logits = jnp.where(logits < _nucleus_floor(logits, sampling.top_p), -jnp.inf, logits)
    if sampling.min_p > 0:
        floor = jnp.max(logits, axis=-1, keepdims=True) + math.log(sampling.min_p)
        logits = jnp.where(logits < floor, -jnp.inf, logits)
    return jax.random.categorical(key, logits, axis=-1).astype(jnp.int32)


def _nucleus_floor(logits: jax.Array, top_p: float) -> jax.Array:
    """The smallest logit [B, 1] in the nucleus of Holtzman et al., 2020."""
    descending, _ = jax.lax.top_k(logits, logits.shape[-1])
    probabilities = jax.nn.softmax(descending, axis=-1)
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    return jnp.min(jnp.where(before < top_p, descending, jnp.inf), axis=-1, keepdims=True)
