"""Dropout whose draws belong to rows of the batch, so that no mesh changes them."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx


class Dropout(nnx.Module):
    """Zeroes a share `rate` of x [B, ...] and divides the rest by 1 - rate, in training.

    Srivastava et al., 2014. Nothing is dropped until `set_dropout` has given the model its keys.
    """

    keys: jax.Array | None

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.keys = nnx.data(None)

    def __call__(self, x: jax.Array) -> jax.Array:
        if self.keys is None or not self.rate:
            return x
        keep = jax.vmap(partial(jax.random.bernoulli, p=1 - self.rate, shape=x.shape[1:]))
        return jnp.where(keep(self.keys), x / (1 - self.rate), 0).astype(x.dtype)


def set_dropout(model: nnx.Module, keys: jax.Array) -> None:
    """Lets every Dropout of the model draw from keys, typed [B], one for each row, and from its
    own number."""
    layers = [module for _, module in nnx.iter_modules(model) if isinstance(module, Dropout)]
    for number, layer in enumerate(layers):
        layer.keys = jax.vmap(partial(_fold, number))(keys)


def _fold(number: int, key: jax.Array) -> jax.Array:
    return jax.random.fold_in(key, number)
