"""The transformer block that vision, speech and text towers share."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from models.layers.attention import Attention
from models.layers.factory import LayerFactory
from models.layers.mlp import MLP, GatedMLP
from models.layers.norms import LayerNorm
from models.layers.relative import WindowBias

Map = Callable[[jax.Array], jax.Array]


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
    out_bias: bool = True  # of attention's output
    mlp_bias: bool = True
    norm_bias: bool = True
    pre_norm: bool = True  # norms stand before the parts of a block; otherwise behind
    gated: bool = False  # the feed-forward block multiplies two projections
    initializer_range: float = 0.02  # standard deviation of the initial weights
    out_stddev: float | None = None  # of those that make what is added, if it differs
    param_dtype: str = "float32"

    @classmethod
    def of(cls, config: Any, **others: Any) -> "BlockShape":
        """The shape of a config whose fields have the same names, but for `others`."""
        names = {field.name for field in fields(cls)} - set(others)
        given = {name: getattr(config, name) for name in names if hasattr(config, name)}
        return cls(**given, **others)

    def norm(self) -> LayerNorm:
        """A norm over the residual stream."""
        return LayerNorm(
            self.dim, eps=self.norm_eps, bias=self.norm_bias, param_dtype=self.param_dtype
        )

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
            out_bias=self.out_bias,
            **self._weights(rngs),
        )

    def window_bias(
        self, rngs: nnx.Rngs, window: tuple[int, int], *, class_token: bool
    ) -> WindowBias:
        """What attention knows of distances in a window."""
        make = LayerFactory.of(self, rngs)
        return WindowBias(self.num_heads, window, make, class_token=class_token)

    def scale(self) -> nnx.Param[jax.Array] | None:
        """A factor for each number of the residual stream (Touvron et al., "CaiT", 2021)."""
        if self.layer_scale is None:
            return None
        values = jnp.full((self.dim,), self.layer_scale, self.param_dtype)
        return nnx.Param(values, axes=("residual",))

    def mlp(self, rngs: nnx.Rngs) -> MLP | GatedMLP:
        """The feed-forward block."""
        return (GatedMLP if self.gated else MLP)(
            self.dim, self.hidden_dim, act=self.act, bias=self.mlp_bias, **self._weights(rngs)
        )

    def _weights(self, rngs: nnx.Rngs) -> dict[str, Any]:
        """What layers are told of their weights."""
        out_stddev = self.initializer_range if self.out_stddev is None else self.out_stddev
        return {"out_stddev": out_stddev, **LayerFactory.of(self, rngs).weights}


def residual(x: jax.Array, part: Map, norm: Map | None, *, pre_norm: bool) -> jax.Array:
    """x + part(norm(x)), or norm(x + part(x)) where norms stand behind; without a norm
    x + part(x)."""
    if norm is None:
        return x + part(x)
    return x + part(norm(x)) if pre_norm else norm(x + part(x))


class Block(nnx.Module):
    """Attention, then a feed-forward block, each a `residual` with a norm of its own, and scaled if
    the shape says so. Dosovitskiy et al., "ViT", 2021.

    Blocks that look in another way have an `attend` of their own."""

    attention_norm: LayerNorm | None

    def __init__(self, shape: BlockShape, *, rngs: nnx.Rngs, **attention: Any) -> None:
        self.pre_norm = shape.pre_norm
        self.attention_norm = shape.norm()
        self.attention = shape.attention(rngs, **attention)
        self.attention_scale = shape.scale()
        self.mlp_norm = shape.norm()
        self.mlp = shape.mlp(rngs)
        self.mlp_scale = shape.scale()

    def __call__(self, x: jax.Array, *others: Any, **named: Any) -> jax.Array:
        """x [B, T, dim] -> [B, T, dim]; all but x is for `attend`."""

        def look(x: jax.Array) -> jax.Array:
            return _scale(self.attend(x, *others, **named), self.attention_scale)

        def think(x: jax.Array) -> jax.Array:
            return _scale(self.mlp(x), self.mlp_scale)

        x = residual(x, look, self.attention_norm, pre_norm=self.pre_norm)
        return residual(x, think, self.mlp_norm, pre_norm=self.pre_norm)

    def attend(self, x: jax.Array, *others: Any, **named: Any) -> jax.Array:
        """What tokens x [B, T, dim], which may be normed, see; arguments as of `Attention`."""
        attended: jax.Array = self.attention(x, *others, **named)
        return attended


def _scale(x: jax.Array, scale: nnx.Param[jax.Array] | None) -> jax.Array:
    return x if scale is None else x * scale[...].astype(x.dtype)
