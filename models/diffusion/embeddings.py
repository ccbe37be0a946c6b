"""How denoisers are told numbers: the time, the guidance, the size of the image."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from models.diffusion.blocks import STDDEV, linear
from models.layers.activations import activation
from models.layers.factory import LayerFactory
from models.layers.norms import standardised

_LONGEST_PERIOD = 10_000.0  # in radians


def waves(
    numbers: jax.Array, dim: int, *, cosine_first: bool = True, shift: float = 0.0
) -> jax.Array:
    """Sines and cosines of numbers [N] at falling frequencies, FP32 [N, 2 · (dim // 2)].

    `shift` is subtracted from how many frequencies the exponents are spread over.
    """
    half = dim // 2
    exponents = jnp.arange(half, dtype=jnp.float32) / (half - shift)
    angles = numbers.astype(jnp.float32)[:, None] * jnp.exp(-math.log(_LONGEST_PERIOD) * exponents)
    both = [jnp.sin(angles), jnp.cos(angles)]
    return jnp.concatenate(both[::-1] if cosine_first else both, axis=-1)


class Embedding(nnx.Module):
    """Two linear maps with an activation between them, the first of them of x + a map of a
    condition."""

    def __init__(
        self,
        in_dim: int,
        dim: int,
        param_dtype: str,
        *,
        condition_dim: int | None = None,  # None = there is no condition
        act: str = "silu",
        rngs: nnx.Rngs,
    ) -> None:
        inside, self.act = {"hidden_dim": dim}, act
        make = LayerFactory(STDDEV, param_dtype, rngs)
        self.condition = (
            None
            if condition_dim is None
            else make.linear(condition_dim, in_dim, axes=("time", "dim"), bias=False)
        )
        self.linear_1 = linear({"dim": in_dim}, inside, param_dtype, rngs)
        self.linear_2 = linear(inside, {"dim": dim}, param_dtype, rngs)

    def __call__(self, x: jax.Array, condition: jax.Array | None = None) -> jax.Array:
        if self.condition is not None and condition is not None:
            x = x + self.condition(condition)
        return self.linear_2(activation(self.act)(self.linear_1(x)))


class Modulation(nnx.Module):
    """What a condition makes of a block: `count` vectors, by which activations are scaled or
    shifted. Perez et al., "FiLM", 2018."""

    def __init__(self, dim: int, count: int, param_dtype: str, *, rngs: nnx.Rngs) -> None:
        self.linear = linear(
            {"dim": dim}, {"parts": count, "split_channels": dim}, param_dtype, rngs
        )

    def __call__(self, condition: jax.Array) -> list[jax.Array]:
        """Vectors [B, 1, dim] of condition [B, dim]."""
        parts = self.linear(jax.nn.silu(condition))
        return [parts[:, i, None] for i in range(parts.shape[1])]


def modulated(x: jax.Array, shift: jax.Array, scale: jax.Array, eps: float = 1e-6) -> jax.Array:
    """x [B, N, D], standardised, times 1 + scale, plus shift, both [B, 1, D]."""
    y = standardised(x, eps) * (1 + scale.astype(jnp.float32)) + shift.astype(jnp.float32)
    return y.astype(x.dtype)
