"""Feed-forward blocks."""

import jax
from flax import nnx
from jax.typing import DTypeLike

from models.layers.linear import Linear


class SwiGLU(nnx.Module):
    """y = down(silu(gate(x)) · up(x)). Shazeer, "GLU Variants Improve Transformer", 2020."""

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        *,
        stddev: float,
        out_stddev: float,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        self.gate = Linear([dim], [hidden_dim], stddev=stddev, param_dtype=param_dtype, rngs=rngs)
        self.up = Linear([dim], [hidden_dim], stddev=stddev, param_dtype=param_dtype, rngs=rngs)
        self.down = Linear(
            [hidden_dim], [dim], stddev=out_stddev, param_dtype=param_dtype, rngs=rngs
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))
