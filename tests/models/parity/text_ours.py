"""Our side of heads on encoders of text, and of text-to-text models."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from models.losses import cross_entropy

Outputs = Mapping[str, jax.Array]


def at_text(output: jax.Array, real: jax.Array) -> jax.Array:
    """The output of every token [B, T, …], zero at padding: what is there has no meaning."""
    return jnp.where(real[..., None], output, 0)


def _feature_extraction(model: Any, weights: jax.Array, **inputs: jax.Array) -> Outputs:
    outputs = dict(model(**inputs))
    outputs["hidden"] = at_text(outputs["hidden"], inputs["real"])
    loss = jnp.mean(outputs["hidden"] * weights)
    if "pooled" in outputs:
        loss = loss + jnp.mean(outputs["pooled"] * weights[:, 0])
    return {**outputs, "loss": loss}


def mean_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Cross-entropy, the mean over the labels that are not negative."""
    counts = labels >= 0
    losses = cross_entropy(logits, jnp.maximum(labels, 0))
    return jnp.sum(jnp.where(counts, losses, 0)) / jnp.sum(counts)


def _classification(model: Any, labels: jax.Array, **inputs: jax.Array) -> Outputs:
    logits = model(**inputs)["logits"]
    loss = mean_loss(logits, labels)
    return {"logits": at_text(logits, inputs["real"]) if logits.ndim == 3 else logits, "loss": loss}


def _question_answering(
    model: Any, start_positions: jax.Array, end_positions: jax.Array, **inputs: jax.Array
) -> Outputs:
    outputs = model(**inputs)
    start = mean_loss(outputs["start_logits"], start_positions)
    end = mean_loss(outputs["end_logits"], end_positions)
    return {**outputs, "loss": (start + end) / 2}


def _text_to_text(model: Any, labels: jax.Array, **inputs: jax.Array) -> Outputs:
    logits = model(**inputs)
    return {"logits": logits, "loss": mean_loss(logits, labels)}


HEADS: Mapping[str, Callable[..., Outputs]] = {
    "feature-extraction": _feature_extraction,
    "fill-mask": _classification,
    "text-classification": _classification,
    "token-classification": _classification,
    "multiple-choice": _classification,
    "question-answering": _question_answering,
    "text2text-generation": _text_to_text,
}
