"""The random numbers that a model begins with."""

import jax
from flax import nnx


class Draws(nnx.Rngs):
    """The keys of nnx.Rngs(seed), one after the other, counted in Python.

    Flax counts in an array, and where that is traced each key takes the time of going through all
    that was traced before.
    """

    def __init__(self, seed: int) -> None:
        self.root, self.count = jax.random.key(seed), 0

    def params(self) -> jax.Array:
        """The next key."""
        key = jax.random.fold_in(self.root, self.count)
        self.count += 1
        return key
