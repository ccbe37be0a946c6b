"""Layers of one model, whose weights are drawn and stored alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from models.layers.conv_norm import ConvNorm, LinearNorm
from models.layers.convolution import Conv
from models.layers.embedding import Embedding
from models.layers.linear import Linear
from models.layers.norms import BatchNorm, LayerNorm


@dataclass(frozen=True)
class LayerFactory:
    """Makes layers, whose weights are drawn with a standard deviation of `stddev` and stored in
    `param_dtype`; other arguments are those of the layers."""

    stddev: float
    param_dtype: str
    rngs: nnx.Rngs

    @classmethod
    def of(cls, config: Any, rngs: nnx.Rngs) -> "LayerFactory":
        """The factory for the fields of a config."""
        return cls(config.initializer_range, config.param_dtype, rngs)

    def linear(
        self,
        before: int,
        after: int,
        *,
        axes: tuple[str, str] = ("channels", "dim"),
        bias: bool = True,
    ) -> Linear:
        return self.dense({axes[0]: before}, {axes[1]: after}, bias=bias)

    def dense(
        self, in_axes: Mapping[str, int], out_axes: Mapping[str, int], *, bias: bool = True
    ) -> Linear:
        """Makes a map between tensors whose axes have these names and sizes."""
        return Linear(in_axes, out_axes, bias=bias, **self.weights)

    def conv(self, before: int, after: int, window: int | Sequence[int], **settings: Any) -> Conv:
        """Over images; a number is the size of a square window."""
        window = (window, window) if isinstance(window, int) else window
        return Conv(before, after, window, **settings, **self.weights)

    def conv_norm(self, before: int, after: int, window: int, **settings: Any) -> ConvNorm:
        return ConvNorm(before, after, window, **settings, **self.weights)

    def linear_norm(self, before: int, after: int, **settings: Any) -> LinearNorm:
        return LinearNorm(before, after, **settings, **self.weights)

    def layer_norm(self, dim: int, eps: float, *, bias: bool = True) -> LayerNorm:
        return LayerNorm(dim, eps=eps, bias=bias, param_dtype=self.param_dtype)

    def batch_norm(self, dim: int, axis: str = "residual") -> BatchNorm:
        return BatchNorm(dim, axis=axis, param_dtype=self.param_dtype)

    def classifier(self, dim: int, labels: int | None) -> Linear | None:
        """The last layer, unless there are no labels."""
        return None if labels is None else self.linear(dim, labels, axes=("dim", "label"))

    def embedding(self, size: int, dim: int, axis: str = "vocab") -> Embedding:
        return Embedding(size, dim, axis=axis, **self.weights)

    def table(self, **axes: int) -> nnx.Param[jax.Array]:
        """Learnt vectors, whose axes have these names and sizes."""
        values = jax.random.normal(self.rngs.params(), tuple(axes.values()), self.param_dtype)
        return nnx.Param(self.stddev * values, axes=tuple(axes))

    def constant(self, value: float = 0.0, **axes: int) -> nnx.Param[jax.Array]:
        """Numbers that all begin at `value`, whose axes have these names and sizes."""
        return nnx.Param(jnp.full(tuple(axes.values()), value, self.param_dtype), axes=tuple(axes))

    @property
    def weights(self) -> dict[str, Any]:
        """What layers are told of their weights."""
        return {"stddev": self.stddev, "param_dtype": self.param_dtype, "rngs": self.rngs}
