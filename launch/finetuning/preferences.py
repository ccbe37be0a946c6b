"""Learning from pairs of answers, of which one is preferred: DPO and ORPO.

A batch has `chosen` and `rejected`, each a batch of texts (`tokens`, `targets`, `weights`) whose
weights are 1 where the answer stands and 0 elsewhere. A row counts if its chosen answer has
tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from launch.finetuning.reference import reference_answers
from launch.training.objectives import Batch, Loss
from models.layers.dropout import set_dropout
from models.losses import cross_entropy


class Answer(NamedTuple):
    """The logarithm of the probability of every row's answer."""

    total: jax.Array  # FP32 [B], the sum over the tokens of the answer
    length: jax.Array  # FP32 [B], their number

    @property
    def mean(self) -> jax.Array:
        """Per token, 0 where there is no answer."""
        return self.total / jnp.maximum(self.length, 1)


def answer_of(model: Any, text: Batch) -> Answer:
    """How likely the model finds the answers of a batch of texts."""
    nats = cross_entropy(model(text["tokens"]), text["targets"], model.vocabulary_axes)
    weights = text["weights"].astype(jnp.float32)
    return Answer(-jnp.sum(nats * weights, axis=1), jnp.sum(weights, axis=1))


@dataclass(frozen=True, kw_only=True)
class DirectPreference:
    """-log σ(β · margin), where the margin is how much more the model prefers the chosen answer
    than the reference does, in nats. Rafailov et al., "Direct Preference Optimization", 2023, (7).

    With label smoothing ε the pair is the other way round with probability ε (Mitchell, "A note on
    DPO with noisy preferences", 2023).
    """

    beta: float = 0.1
    label_smoothing: float = 0.0

    def __call__(self, model: Any, batch: Batch, keys: jax.Array | None) -> Loss:
        """Metrics: `accuracy` of the margin's sign, `margin`, `chosen_reward` and
        `rejected_reward` (β times what the model adds to the reference's)."""
        reference = reference_answers(model, batch, answer_of)
        answers = _answers(model, batch, keys)
        rewards = {
            name: self.beta * (answers[name].total - reference[name].total) for name in answers
        }
        margin = rewards["chosen"] - rewards["rejected"]
        loss = -(1 - self.label_smoothing) * jax.nn.log_sigmoid(margin)
        loss = loss - self.label_smoothing * jax.nn.log_sigmoid(-margin)
        return _loss(
            loss,
            answers["chosen"],
            accuracy=(margin > 0).astype(jnp.float32),
            margin=margin,
            chosen_reward=rewards["chosen"],
            rejected_reward=rewards["rejected"],
        )


@dataclass(frozen=True, kw_only=True)
class OddsRatio:
    """-log P(chosen) - λ · log σ(log odds(chosen) - log odds(rejected)), where P is the geometric
    mean over an answer's tokens and odds = P / (1 - P). Hong et al., "ORPO", 2024, (6) and (7)."""

    factor: float = 0.1  # λ

    def __call__(self, model: Any, batch: Batch, keys: jax.Array | None) -> Loss:
        """Metrics: `accuracy` of the odds, `log_odds_ratio`, `nats` of the chosen answers."""
        answers = _answers(model, batch, keys)
        chosen, rejected = answers["chosen"].mean, answers["rejected"].mean
        ratio = _log_odds(chosen) - _log_odds(rejected)
        loss = -chosen - self.factor * jax.nn.log_sigmoid(ratio)
        return _loss(
            loss,
            answers["chosen"],
            accuracy=(ratio > 0).astype(jnp.float32),
            log_odds_ratio=ratio,
            nats=-chosen,
        )


def _answers(model: Any, batch: Batch, keys: jax.Array | None) -> dict[str, Answer]:
    if keys is not None:
        set_dropout(model, keys)
    return {name: answer_of(model, batch[name]) for name in ("chosen", "rejected")}


def _log_odds(log_probability: jax.Array) -> jax.Array:
    # A probability of 1 has infinite odds: the smallest number below 0 stands for its logarithm.
    below = jnp.minimum(log_probability, -jnp.finfo(jnp.float32).tiny)
    return below - jnp.log(-jnp.expm1(below))


def _loss(rows: jax.Array, chosen: Answer, **metrics: jax.Array) -> Loss:
    counts = (chosen.length > 0).astype(jnp.float32)
    sums: Mapping[str, jax.Array] = {name: jnp.sum(x * counts) for name, x in metrics.items()}
    return Loss(jnp.sum(rows * counts), jnp.sum(counts), sums)
