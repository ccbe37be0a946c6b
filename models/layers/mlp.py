"""Feed-forward blocks."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from flax import nnx
from jax.typing import DTypeLike

from models.layers.activations import activation
from models.layers.linear import Linear, fused_linear


class GatedMLP(nnx.Module):
    """y = down(act(gate(x)) · up(x)). Shazeer, "GLU Variants Improve Transformer", 2020.

    SwiGLU with the activation "silu", GeGLU with "gelu" or "gelu_pytorch_tanh". `fused`, False at
    first, lets gate and up be one product. `compute`, `composed` at first, computes it.
    """

    compute: Callable[[Any, jax.Array], jax.Array]
    fused: bool

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        *,
        act: str = "silu",
        bias: bool = False,
        stddev: float,
        out_stddev: float,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        outside, inside = {"dim": dim}, {"hidden_dim": hidden_dim}
        project = partial(Linear, bias=bias, param_dtype=param_dtype, rngs=rngs)
        self.gate = project(outside, inside, stddev=stddev)
        self.up = project(outside, inside, stddev=stddev)
        self.down = project(inside, outside, stddev=out_stddev)
        self.compute, self.act, self.fused = GatedMLP.composed, act, False

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.compute(self, x)

    def composed(self, x: jax.Array) -> jax.Array:
        """The block by its linear maps, one after the other."""
        if self.fused:
            gate, up = fused_linear(x, (self.gate, self.up))
        else:
            gate, up = self.gate(x), self.up(x)
        return self.down(activation(self.act)(gate) * up)


class MLP(nnx.Module):
    """y = down(act(up(x))), with biases unless told otherwise."""

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        *,
        act: str,
        bias: bool = True,
        stddev: float,
        out_stddev: float,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        outside, inside = {"dim": dim}, {"hidden_dim": hidden_dim}
        project = partial(Linear, bias=bias, param_dtype=param_dtype, rngs=rngs)
        self.up = project(outside, inside, stddev=stddev)
        self.down = project(inside, outside, stddev=out_stddev)
        self.act = act

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(activation(self.act)(self.up(x)))
