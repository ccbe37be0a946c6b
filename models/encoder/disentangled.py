"""Disentangled attention: what a token is and how far away it is have scores of their own.

He et al., "DeBERTa", 2021. Axis names: B texts, T tokens, N heads, H width of a head, D model
width; a distance is that of a query from a key, in tokens.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from models.errors import ConfigError
from models.layers.attention import Attention
from models.layers.cache import KVCache
from models.layers.factory import LayerFactory
from models.layers.linear import Linear
from models.layers.products import einsum_fp32

CONTENT_TO_POSITION, POSITION_TO_CONTENT = "c2p", "p2c"
SCORES = frozenset({CONTENT_TO_POSITION, POSITION_TO_CONTENT})


@dataclass(frozen=True)
class Disentangled:
    """Raises ConfigError for scores that are not known, or ranges that are too short."""

    scores: frozenset[str]  # of SCORES
    max_distance: int  # what is farther away shares a vector
    buckets: int | None = None  # of each side; those of far distances hold several. None = no
    shared: bool = False  # queries and keys of distances are made as those of tokens
    normed: bool = False  # the vectors of distances pass a norm
    biases: bool = True  # of all keys

    def __post_init__(self) -> None:
        if not self.scores <= SCORES:
            raise ConfigError(
                f"disentangled attention has unknown scores in {sorted(self.scores)}; choose from "
                f"{sorted(SCORES)}"
            )
        if self.max_distance < 2 or (self.buckets is not None and self.buckets < 2):
            raise ConfigError(
                f"max_distance={self.max_distance} and buckets={self.buckets} must each be at "
                "least 2"
            )

    @property
    def span(self) -> int:
        """How many vectors there are of each side."""
        return self.max_distance if self.buckets is None else self.buckets

    def places(self, length: int) -> np.ndarray:
        """Which vectors are those of the distances length - 1, …, 1 - length: int32
        [2 · length - 1]."""
        distances = np.arange(length - 1, -length, -1)
        if self.buckets is not None:
            distances = _round_distances(distances, self.buckets, self.max_distance)
        return np.clip(distances + self.span, 0, 2 * self.span - 1).astype(np.int32)


def _round_distances(distances: np.ndarray, buckets: int, max_distance: int) -> np.ndarray:
    """Distances of which far ones are rounded up on a logarithmic scale, as the original has it:
    in FP32, where the last bit decides at the edges."""
    near = buckets // 2
    far = np.maximum(np.abs(distances), near - 1).astype(np.float32)
    steps = np.log(far / np.float32(near)) / np.log(np.float32((max_distance - 1) / near))
    logarithmic = (np.ceil(steps * np.float32(near - 1)) + near) * np.sign(distances)
    return np.where(far <= near, distances, logarithmic)


class DistanceVectors(nnx.Module):
    """A vector for each distance."""

    def __init__(
        self, config: Disentangled, dim: int, make: LayerFactory, *, norm_eps: float
    ) -> None:
        self.config = config
        self.table = make.table(positions=2 * config.span, features=dim)
        self.norm = make.layer_norm(dim, norm_eps) if config.normed else None

    def __call__(self, length: int, dtype: DTypeLike) -> jax.Array:
        """[2T - 1, D], from the farthest key before a query to the farthest behind it."""
        vectors = self.table[...].astype(dtype)
        vectors = vectors if self.norm is None else self.norm(vectors)
        return vectors[self.config.places(length)]


class DisentangledAttention(Attention):
    """Self-attention whose scores are sums: of tokens, of a query and the distance of a key, and of
    a key and the distance of a query."""

    def __init__(self, config: Disentangled, dim: int, num_heads: int, make: LayerFactory) -> None:
        head_dim = dim // num_heads
        super().__init__(
            dim,
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=head_dim,
            bias=True,
            key_bias=config.biases,
            out_bias=True,
            scale=(head_dim * (1 + len(config.scores))) ** -0.5,
            out_stddev=make.stddev,
            **make.weights,
        )

        def project(score: str, bias: bool) -> Linear | None:
            if config.shared or score not in config.scores:
                return None
            return make.dense({"dim": dim}, {"heads": num_heads, "head_dim": head_dim}, bias=bias)

        self.config = config
        self.position_key = project(CONTENT_TO_POSITION, config.biases)
        self.position_query = project(POSITION_TO_CONTENT, True)

    def look(self, x: jax.Array, mask: jax.Array | None, vectors: jax.Array) -> jax.Array:
        """x [B, T, D], mask as in `AttentionCall`, vectors of distances [2T - 1, D] ->
        [B, T, D]."""
        query, key = self.query(x), self.key(x)
        scores = jnp.zeros((), jnp.float32)
        if CONTENT_TO_POSITION in self.config.scores:
            keys = (self.position_key or self.key)(vectors)
            scores = scores + _by_distance(query, keys)
        if POSITION_TO_CONTENT in self.config.scores:
            queries = (self.position_query or self.query)(vectors[::-1])
            scores = scores + _by_distance(key, queries).swapaxes(-1, -2)
        assert self.scale is not None
        bias = self.scale * scores if self.config.scores else None
        return self._mix(query, KVCache(key, self.value(x)), mask, bias)


def _by_distance(heads: jax.Array, vectors: jax.Array) -> jax.Array:
    """scores[b, n, t, s] = heads[b, t, n] · vectors[T - 1 + s - t, n], FP32.

    heads [B, T, N, H], vectors [2T - 1, N, H]. Row t of all products begins T - 1 - t columns
    late: rows that are one column shorter bring them into line without a gather.
    """
    length = heads.shape[1]
    products = einsum_fp32("btnh,jnh->bntj", heads, vectors)
    padded = jnp.pad(products, ((0, 0), (0, 0), (0, 0), (0, 1)))  # rows of 2T
    flat = padded.reshape(*padded.shape[:2], -1)
    shorter = flat[..., length - 1 : length - 1 + length * (2 * length - 1)]
    return shorter.reshape(*padded.shape[:2], length, 2 * length - 1)[..., :length]
