"""Feed-forward blocks of parts of the width (Jiang et al., "ConvBERT", 2020).

Axis names: B texts, T tokens, D model width, G groups, I and O widths of a group.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.layers.activations import activation
from models.layers.axes import make_bias
from models.layers.blocks import BlockShape
from models.layers.factory import LayerFactory


class GroupedLinear(nnx.Module):
    """y[g] = x[g] · kernel[g] (+ bias[g]), of each group g of numbers."""

    def __init__(
        self, shape: BlockShape, groups: int, axes: dict[str, int], *, rngs: nnx.Rngs
    ) -> None:
        (_, outside) = axes
        self.kernel = LayerFactory.of(shape, rngs).table(groups=groups, **axes)
        self.bias = make_bias({"groups": groups, outside: axes[outside]}, shape.param_dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [B, T, G, I] -> [B, T, G, O]."""
        y = jnp.einsum("btgi,gio->btgo", x, self.kernel[...].astype(x.dtype))
        return y + self.bias[...].astype(x.dtype)


class GroupedMLP(nnx.Module):
    """y = down(act(up(x))) of each group of numbers."""

    def __init__(self, shape: BlockShape, groups: int, *, rngs: nnx.Rngs) -> None:
        self.act, self.groups = shape.act, groups
        outside, inside = shape.dim // groups, shape.hidden_dim // groups
        self.up = GroupedLinear(shape, groups, {"dim": outside, "hidden_dim": inside}, rngs=rngs)
        self.down = GroupedLinear(shape, groups, {"hidden_dim": inside, "dim": outside}, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [B, T, D] -> [B, T, D]."""
        grouped = x.reshape(*x.shape[:-1], self.groups, -1)
        return self.down(activation(self.act)(self.up(grouped))).reshape(x.shape)
