"""Random keys for initialising a model."""

import jax
from flax import nnx


class Draws(nnx.Rngs):
    """The keys of nnx.Rngs(seed), one after the other, counted in Python.

    Flax counts in an array; under tracing, each key then takes time proportional to everything
    traced before it.
    """

    def __init__(self, seed: int) -> None:
        self.root, self.count = jax.random.key(seed), 0

    def params(self) -> jax.Array:
        """The key of the next random array."""
        key = jax.random.fold_in(self.root, self.count)
        self.count += 1
        return key
