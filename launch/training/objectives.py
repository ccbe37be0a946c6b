"""What training minimises: sums over what counts, so that means are exact on every mesh."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from launch.settings import check_settings, setting
from models.layers.dropout import set_dropout
from models.losses import TokenLosses, token_losses

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
class LabelLoss:
    """The cross entropy of labels, and what is added to it."""

    label_smoothing_factor: float = setting(
        0.0,
        "Share of each label that is spread evenly over all tokens or classes.",
        lowest=0.0,
        below=1.0,
    )
    z_loss_coef: float = setting(
        0.0, "Factor of the z-loss, log²(Σ exp logits), of tokens or classes.", lowest=0.0
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def __call__(
        self,
        logits: jax.Array,
        labels: jax.Array,
        axes: tuple[str, ...] = (),
        plain: Callable[[jax.Array, jax.Array], jax.Array] | None = None,
    ) -> TokenLosses:
        """The losses of tokens, as from `models.losses.token_losses`."""
        return token_losses(
            logits,
            labels,
            axes,
            label_smoothing=self.label_smoothing_factor,
            z_loss=self.z_loss_coef,
            plain=plain,
        )


PLAIN = LabelLoss()


@dataclass(frozen=True, kw_only=True)
class LanguageModelling:
    """Cross entropy of the next tokens, in nats, over a batch of `tokens`, `targets` and
    `weights` [B, T], and `segments` and `positions` where rows are packed."""

    of_labels: LabelLoss = PLAIN

    def __call__(self, model: Any, batch: Batch, keys: jax.Array | None) -> Loss:
        """The loss, and `nats`, the plain cross entropy, where the loss is another."""
        if keys is not None:
            set_dropout(model, keys)
        packed = {name: batch[name] for name in ("segments", "positions") if name in batch}
        logits = model(batch["tokens"], **packed)
        nats, loss = self.of_labels(
            logits, batch["targets"], model.vocabulary_axes, model.cross_entropy
        )
        weights = batch["weights"].astype(jnp.float32)
        plain = {"nats": jnp.sum(nats * weights)} if nats is not loss else {}
        return Loss(jnp.sum(loss * weights), jnp.sum(weights), plain)


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
