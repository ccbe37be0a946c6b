"""What training minimises: sums over what counts, so that means are exact on every mesh."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.layers.dropout import set_dropout
from models.losses import cross_entropy

# Arrays of equal leading dimension, the rows; leaves may be dictionaries of such arrays again.
Batch = Mapping[str, Any]


class Loss(NamedTuple):
    """Sums over a batch, or over a part of one: the loss of all is Σ total / Σ weight."""

    total: jax.Array  # FP32 []
    weight: jax.Array  # FP32 []: how much counts, such as the number of tokens
    metrics: Mapping[str, jax.Array]  # FP32 []; reported divided by the weight, as the loss is


class Objective(Protocol):
    """The loss of a model on a batch."""

    def __call__(self, model: Any, batch: Batch, keys: jax.Array | None) -> Loss:
        """`model` is an nnx.Module; it may change its variables that are no parameters.

        keys, typed [B], are one for each row, made of the seed, the step and the row's place in
        the global batch: what is random does not depend on the mesh. Without keys the model is
        evaluated: nothing is random, and no statistics move.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class LanguageModelling:
    """Cross entropy of the next tokens, in nats, over a batch of `tokens`, `targets` and
    `weights` [B, T], and `segments` and `positions` where rows are packed."""

    def __call__(self, model: nnx.Module, batch: Batch, keys: jax.Array | None) -> Loss:
        """The loss, and no metrics."""
        assert callable(model)
        if keys is not None:
            set_dropout(model, keys)
        packed = {name: batch[name] for name in ("segments", "positions") if name in batch}
        nats = cross_entropy(model(batch["tokens"], **packed), batch["targets"])
        weights = batch["weights"].astype(jnp.float32)
        return Loss(jnp.sum(nats * weights), jnp.sum(weights), {})


def next_tokens(rows: np.ndarray, counted: int | None = None) -> dict[str, np.ndarray]:
    """The batch of rows of text int32 [B, T + 1], of which the first `counted` count."""
    weights = np.ones((len(rows), rows.shape[1] - 1), np.float32)
    weights[len(rows) if counted is None else counted :] = 0
    return {"tokens": rows[:, :-1], "targets": rows[:, 1:], "weights": weights}


def text_batch(batch_size: int, seq_len: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of `next_tokens`."""
    shape = (batch_size, seq_len)
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32)
    return {
        "tokens": tokens,
        "targets": tokens,
        "weights": jax.ShapeDtypeStruct(shape, jnp.float32),
    }
