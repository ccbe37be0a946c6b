"""Which residues of a protein touch each other, read from where attention looks (Rao et al.,
"Transformer protein language models are unsupervised structure learners", 2021).

Axis names: B proteins, T tokens, R = T - 2 residues, C heads of all layers.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.layers.factory import LayerFactory

_END = 2  # the token after a protein


class Contacts(nnx.Module):
    """A logistic regression on every head's attention between two residues."""

    def __init__(self, heads: int, make: LayerFactory) -> None:
        self.regression = make.dense({"maps": heads}, {"contact": 1})

    def __call__(
        self, attentions: jax.Array, tokens: jax.Array, real: jax.Array | None
    ) -> jax.Array:
        """Chances [B, R, R], FP32, of attentions [B, C, T, T]: tokens [B, T] begin with one that is
        no residue, and end with another or with padding, where real [B, T] is False."""
        counts = tokens != _END if real is None else (tokens != _END) & real
        maps = jnp.where(counts[:, None, :, None] & counts[:, None, None, :], attentions, 0)
        maps = maps[:, :, 1:-1, 1:-1]
        maps = maps + maps.swapaxes(-1, -2)
        # Less what chance alone would give, as of correlated mutations (Dunn et al., 2008).
        rows, columns = (maps.sum(axis=axis, keepdims=True) for axis in (-1, -2))
        maps = maps - rows * columns / maps.sum(axis=(-1, -2), keepdims=True)
        return jax.nn.sigmoid(self.regression(jnp.moveaxis(maps, 1, -1))[..., 0])
