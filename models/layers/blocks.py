"""The pre-norm transformer block that vision, speech and text towers share."""

from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from models.layers.attention import Attention
from models.layers.mlp import MLP
from models.layers.norms import LayerNorm


@dataclass(frozen=True)
class BlockShape:
    """The dimensions and constants of one block."""

    dim: int  # width of the residual stream
    hidden_dim: int  # width of the feed-forward block
    num_heads: int
    act: str  # of the feed-forward block
    norm_eps: float  # added to the variance in LayerNorm
    layer_scale: float | None = None  # what both parts are multiplied by at first; None = nothing
    qkv_bias: bool = True  # of queries, keys and values
    key_bias: bool = True  # of the keys, if the others have one
    mlp_bias: bool = True
    initializer_range: float = 0.02  # standard deviation of the initial weights
    param_dtype: str = "float32"

    @classmethod
    def of(cls, config: Any, **others: Any) -> "BlockShape":
        """The shape of a config whose fields have the same names, but for `others`."""
        names = {field.name for field in fields(cls)} - set(others)
        given = {name: getattr(config, name) for name in names if hasattr(config, name)}
        return cls(**given, **others)

    def norm(self) -> LayerNorm:
        """A norm over the residual stream."""
        return LayerNorm(self.dim, eps=self.norm_eps, param_dtype=self.param_dtype)

    def attention(self, rngs: nnx.Rngs, **settings: Any) -> Attention:
        """Attention with as many key-value heads as query heads, and other settings of it."""
        return Attention(
            self.dim,
            **settings,
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads,
            head_dim=self.dim // self.num_heads,
            bias=self.qkv_bias,
            key_bias=self.qkv_bias and self.key_bias,
            out_bias=True,
            stddev=self.initializer_range,
            out_stddev=self.initializer_range,
            param_dtype=self.param_dtype,
            rngs=rngs,
        )

    def scale(self) -> nnx.Param[jax.Array] | None:
        """A factor for each number of the residual stream (Touvron et al., "CaiT", 2021)."""
        if self.layer_scale is None:
            return None
        values = jnp.full((self.dim,), self.layer_scale, self.param_dtype)
        return nnx.Param(values, axes=("residual",))

    def mlp(self, rngs: nnx.Rngs) -> MLP:
        """The feed-forward block."""
        return MLP(
            self.dim,
            self.hidden_dim,
            act=self.act,
            bias=self.mlp_bias,
            stddev=self.initializer_range,
            out_stddev=self.initializer_range,
            param_dtype=self.param_dtype,
            rngs=rngs,
        )


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)), both scaled if the shape says so.

    Dosovitskiy et al., "ViT", 2021."""

    def __init__(self, shape: BlockShape, *, rngs: nnx.Rngs) -> None:
        self.attention_norm = shape.norm()
        self.attention = shape.attention(rngs)
        self.attention_scale = shape.scale()
        self.mlp_norm = shape.norm()
        self.mlp = shape.mlp(rngs)
        self.mlp_scale = shape.scale()

    def __call__(
        self, x: jax.Array, mask: jax.Array | None = None, bias: jax.Array | None = None
    ) -> jax.Array:
        """x [B, T, dim], mask and bias as in `dot_product_attention` -> [B, T, dim]."""
        attended, _ = self.attention(self.attention_norm(x), mask, bias=bias)
        x = x + _scaled(attended, self.attention_scale)
        return x + _scaled(self.mlp(self.mlp_norm(x)), self.mlp_scale)


def _scaled(x: jax.Array, scale: nnx.Param[jax.Array] | None) -> jax.Array:
    return x if scale is None else x * scale[...].astype(x.dtype)
