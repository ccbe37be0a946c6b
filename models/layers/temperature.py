"""Attention that stays sharp in long texts: queries that grow with their position."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from models.errors import ConfigError


@dataclass(frozen=True)
class Temperature:
    """A query at position p is multiplied by 1 + strength · log(1 + floor((p + 1) / floor)).

    Nakanishi, "Scalable-Softmax Is Superior for Attention", 2025, in the form of Llama 4. Raises
    ConfigError for a number out of range.
    """

    floor: int = 8192  # positions between two steps
    strength: float = 0.1

    def __post_init__(self) -> None:
        if self.floor < 1 or not abs(self.strength) < math.inf:
            raise ConfigError(
                "attention temperature needs a positive floor and a finite strength, but "
                f"floor={self.floor} and strength={self.strength}"
            )

    def factors(self, places: jax.Array) -> jax.Array:
        """The factors of queries at these positions, FP32, in their shape."""
        steps = jnp.floor((places.astype(jnp.float32) + 1) / self.floor)
        return 1 + self.strength * jnp.log1p(steps)
