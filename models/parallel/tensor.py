"""Tensor and sequence parallelism: layers of which each core has a part, and the communication
about them.

Heads, the feed-forward width and the vocabulary are split (Shoeybi et al., "Megatron-LM", 2019).
With sequence parallelism the residual stream is split by positions between layers: norms and
additions work on a core's own positions, what a norm makes is gathered, and partial sums are added
up and split again (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
Models", 2022).

Modules are changed in place, within a `jax.shard_map` region whose parameters are a core's parts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from models.layers.dropout import Dropout
from models.layers.embedding import Embedding
from models.layers.linear import Linear
from models.layers.moe import MoE
from models.losses import NO_WORD


@dataclass(frozen=True)
class TensorParallel:
    """The mesh axes over which layers are split, and how the residual stream is held."""

    axes: tuple[str, ...]
    sequence: bool  # by positions between layers; otherwise each core has it whole
    #: Further axes over which the vocabulary alone is split: of cores with the same residual stream
    #: behind the embedding and before the head.
    stages: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The number of cores that share positions between layers."""
        return int(jax.lax.axis_size(self.axes)) if self.sequence else 1

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The axes over which the vocabulary is split."""
        return (*self.stages, *self.axes)

    def gather(self, x: jax.Array) -> jax.Array:
        """A core's own positions [B, T/cores, …] -> all positions [B, T, …]."""
        if not self.sequence:
            return x
        return jax.lax.all_gather(x, self.axes, axis=1, tiled=True)

    def own(self, x: jax.Array) -> jax.Array:
        """What every core has whole, [B, T, D] or [T, D] -> the residual stream's form of it."""
        if not self.sequence:
            return x
        size = x.shape[-2] // jax.lax.axis_size(self.axes)
        start = jax.lax.axis_index(self.axes) * size
        return jax.lax.dynamic_slice_in_dim(x, start, size, axis=-2)

    def add_up(self, x: jax.Array) -> jax.Array:
        """Partial sums [B, T, …] -> the residual stream's form of the sums over cores."""
        if not self.axes:
            return x
        if not self.sequence:
            return jax.lax.psum(x, self.axes)
        return jax.lax.psum_scatter(x, self.axes, scatter_dimension=1, tiled=True)


class Sharing(NamedTuple):
    """How the cores of a tensor-parallel group share an architecture: changes in place."""

    model: Callable[[Any, TensorParallel], None]  # all but its blocks
    block: Callable[[Any, TensorParallel], None]


class Gathered(nnx.Module):
    """A layer on a core's own positions, whose results all cores get."""

    def __init__(self, inner: Any, tensor: TensorParallel) -> None:
        self.inner, self.tensor = inner, tensor

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, T/cores, D] -> [B, T, D]."""
        return self.tensor.gather(self.inner(x))


class AddedUp(nnx.Module):
    """A layer that makes partial sums, whose bias is added to the sums, of which some are dropped
    if it drops any."""

    def __init__(self, inner: Linear | MoE, tensor: TensorParallel) -> None:
        bias = inner.bias if isinstance(inner, Linear) else None
        if isinstance(inner, Linear):
            inner.bias = None
        dropout, inner.dropout = inner.dropout, nnx.data(None)
        if dropout is not None and tensor.sequence:
            dropout.positions = (*dropout.positions, tensor)
        for _, module in nnx.iter_modules(inner):
            if isinstance(module, Dropout | MoE):
                module.axes = tensor.axes
        self.inner, self.bias, self.tensor = inner, bias, tensor
        self.dropout = nnx.data(dropout)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, T, …] -> [B, T/cores, D]."""
        return self.finished(self.inner(x))

    def finished(self, partial: jax.Array) -> jax.Array:
        """What the partial sums [B, T, …] of its layer make."""
        y = self.tensor.add_up(partial)
        y = y if self.bias is None else y + self.bias[...].astype(y.dtype)
        return y if self.dropout is None else self.dropout(y)


class OwnEmbedding(nnx.Module):
    """The vectors of positions, of which a core keeps its own."""

    def __init__(self, inner: Embedding, tensor: TensorParallel) -> None:
        self.inner, self.tensor = inner, tensor

    def __call__(self, places: jax.Array, dtype: DTypeLike) -> jax.Array:
        """Places [B, T] or [T] -> [B, T/cores, D] or [T/cores, D]."""
        return self.tensor.own(self.inner(places, dtype))


class PartialEmbedding(nnx.Module):
    """The vectors of a core's tokens, added up over cores; logits of its tokens."""

    def __init__(self, inner: Embedding, tensor: TensorParallel) -> None:
        self.inner, self.tensor = inner, tensor

    def __call__(self, tokens: jax.Array, dtype: DTypeLike) -> jax.Array:
        """Tokens [B, T] -> [B, T/cores, D]."""
        size = len(self.inner.table[...])
        own = tokens - jax.lax.axis_index(self.tensor.vocabulary) * size
        here = (own >= 0) & (own < size)
        vectors = self.inner(jnp.where(here, own, 0), dtype)
        x = self.tensor.add_up(jnp.where(here[..., None], vectors, 0))
        return jax.lax.psum(x, self.tensor.stages) if self.tensor.stages else x

    def logits(self, x: jax.Array) -> jax.Array:
        """x [B, T, D] -> [B, T, V/cores]."""
        return self.inner.logits(x)


def own_rows(table: jax.Array, axes: tuple[str, ...], *, columns: bool) -> jax.Array:
    """A core's part of a table [V, …] whose rows the cores along `axes` do not divide, filled up
    with zeros: [⌈V/cores⌉, …]. Every core has the whole table, or a part of its `columns`."""
    cores = jax.lax.axis_size(axes)
    rows = -(-len(table) // cores)
    filled = jnp.pad(table, [(0, rows * cores - len(table)), *[(0, 0)] * (table.ndim - 1)])
    if columns:
        return jax.lax.all_to_all(filled, axes, split_axis=0, concat_axis=1, tiled=True)
    return jax.lax.dynamic_slice_in_dim(filled, jax.lax.axis_index(axes) * rows, rows)


def hide_fillings(logits: jax.Array, words: int, axes: tuple[str, ...]) -> jax.Array:
    """A core's part of the logits [..., ⌈V/cores⌉], `NO_WORD` where it has no word of its own."""
    own = logits.shape[-1]
    if own * jax.lax.axis_size(axes) == words:
        return logits
    numbers = jax.lax.axis_index(axes) * own + jnp.arange(own)
    return jnp.where(numbers < words, logits, NO_WORD)
