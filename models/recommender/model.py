"""DLRM: Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation
Systems", 2019.

Axis names: B rows, N dense numbers, F kinds of ids, L ids of a kind in a row, D width of a vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.errors import ConfigError, InputError
from models.layers.factory import LayerFactory
from models.layers.linear import Linear
from models.layers.products import einsum_fp32
from models.settings import TOKENS, WIDTH, check_settings, setting

_ROWS = 128  # the table is filled up to a multiple, so that meshes divide it


@dataclass(frozen=True)
class RecommenderConfig:
    """Every dimension. Raises ConfigError if a size is out of range, or the table is too large."""

    num_dense: int = setting(None, "number of dense features", WIDTH)
    vocab_sizes: tuple[int, ...] = setting(
        None, "vocabulary size of each categorical feature", TOKENS
    )
    dim: int = setting(None, "width of the ID embeddings", WIDTH, default=16)
    dense_widths: tuple[int, ...] = setting(
        None, "hidden widths of the bottom MLP, whose output is `dim` wide", WIDTH, default=(64,)
    )
    top_widths: tuple[int, ...] = setting(
        None, "hidden widths of the top MLP, whose output is the logit", WIDTH, default=(64,)
    )
    dtype: str = "float32"  # of activations and operands
    param_dtype: str = "float32"  # of the stored weights

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.vocab_sizes:
            raise ConfigError("vocab_sizes is empty: give at least one categorical feature")
        if self.table_rows not in TOKENS:
            raise ConfigError(
                f"vocab_sizes add up to {sum(self.vocab_sizes)}, but at most {TOKENS.highest} IDs "
                "are supported"
            )

    @property
    def table_rows(self) -> int:
        """Rows of the table of all kinds, which stand one after another."""
        return -(-sum(self.vocab_sizes) // _ROWS) * _ROWS

    @property
    def num_pairs(self) -> int:
        """Pairs among the vectors of all kinds and that of the dense numbers."""
        count = len(self.vocab_sizes) + 1
        return count * (count - 1) // 2


class Recommender(nnx.Module):
    """Numbers and ids to the logit of a click.

    One table holds the vectors of all ids, its rows split like a vocabulary: a row's ids are one
    gather, and no kind is too small for the mesh.
    """

    def __init__(self, config: RecommenderConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        make = LayerFactory(config.dim**-0.5, config.param_dtype, rngs)
        self.table = make.embedding(config.table_rows, config.dim)
        self.dense = _layers((config.num_dense, *config.dense_widths, config.dim), config, rngs)
        self.top = _layers((config.dim + config.num_pairs, *config.top_widths, 1), config, rngs)

    def __call__(self, dense: jax.Array, ids: jax.Array) -> jax.Array:
        """Logits [B], FP32, of dense [B, N] and ids int32 [B, F] or [B, F, L].

        Several ids of a kind are added; negative ones only fill. An id beyond its vocabulary counts
        as the last one.
        """
        config = self.config
        _check(config, dense, ids)
        ids = ids if ids.ndim == 3 else ids[..., None]
        sizes = np.array(config.vocab_sizes, np.int32)[:, None]
        offsets = np.array([0, *accumulate(config.vocab_sizes)][:-1], np.int32)[:, None]
        rows = offsets + jnp.clip(ids, 0, sizes - 1)
        vectors = jnp.where((ids >= 0)[..., None], self.table(rows, config.dtype), 0).sum(axis=2)
        below = _run(self.dense, dense.astype(config.dtype), ends_relu=True)
        everything = jnp.concatenate([below[:, None], vectors], axis=1)
        products = einsum_fp32("bfd,bgd->bfg", everything, everything)
        lower = np.tril_indices(everything.shape[1], k=-1)
        pairs = products[:, lower[0], lower[1]].astype(below.dtype)
        above = _run(self.top, jnp.concatenate([below, pairs], axis=1), ends_relu=False)
        return above[:, 0].astype(jnp.float32)

    @staticmethod
    def loss(logits: jax.Array, clicked: jax.Array) -> jax.Array:
        """The mean binary cross entropy of logits [B] and clicked [B], 0 or 1."""
        return jnp.mean(jax.nn.softplus(logits) - logits * clicked)


def _layers(widths: Sequence[int], config: RecommenderConfig, rngs: nnx.Rngs) -> nnx.List[Linear]:
    """Linear maps in Megatron's layout: every second one is split by what it gives, the others by
    what they take."""
    names = ("dim", "hidden_dim")
    return nnx.List(
        [
            Linear(
                {names[i % 2]: before},
                {names[(i + 1) % 2] if after > 1 else "logit": after},
                bias=True,
                stddev=(2 / (before + after)) ** 0.5,
                param_dtype=config.param_dtype,
                rngs=rngs,
            )
            for i, (before, after) in enumerate(pairwise(widths))
        ]
    )


def _run(layers: nnx.List[Linear], x: jax.Array, *, ends_relu: bool) -> jax.Array:
    """All layers, with a ReLU between them, and perhaps after the last one."""
    for i, layer in enumerate(layers):
        x = layer(x)
        if i < len(layers) - 1 or ends_relu:
            x = jax.nn.relu(x)
    return x


def _check(config: RecommenderConfig, dense: jax.Array, ids: jax.Array) -> None:
    kinds = len(config.vocab_sizes)
    if dense.ndim != 2 or dense.shape[1] != config.num_dense:
        raise InputError(
            f"dense has the shape {list(dense.shape)}, but this model takes [B, {config.num_dense}]"
        )
    if ids.ndim not in (2, 3) or ids.shape[1] != kinds or len(ids) != len(dense):
        raise InputError(
            f"ids have the shape {list(ids.shape)}, but this model takes [{len(dense)}, {kinds}] "
            f"or [{len(dense)}, {kinds}, L]"
        )
