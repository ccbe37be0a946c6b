"""The heads of text encoders: one per task, selected by the config.

Axis names: B texts, T tokens, D width of the encoder, C choices, V vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from models.errors import ConfigError
from models.layers.activations import activation
from models.layers.embedding import Embedding
from models.layers.factory import LayerFactory

Outputs = Mapping[str, jax.Array]

# How transformers names the classes with a head for each task.
CLASSES: Mapping[str, str] = {
    "feature-extraction": "Model",
    "fill-mask": "ForMaskedLM",
    "multiple-choice": "ForMultipleChoice",
    "question-answering": "ForQuestionAnswering",
    "text-classification": "ForSequenceClassification",
    "token-classification": "ForTokenClassification",
}


@dataclass(frozen=True)
class TextHeadConfig:
    """Raises ConfigError for a task or a pooling that is not known."""

    task: str  # a key of TASKS
    num_labels: int = 2
    transform: bool = True  # dense, activation and norm before the outputs
    act: str = "tanh"  # of the transform
    transform_dim: int | None = None  # width of what it makes, if not the encoder's
    transform_bias: bool = True
    transform_norm: bool = False
    pooling: str = "first"  # what stands for a whole text: a key of POOLINGS
    output_bias: bool = True

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ConfigError(
                f"the task {self.task!r} is not supported; choose one of {', '.join(TASKS)}"
            )
        if self.pooling not in POOLINGS:
            raise ConfigError(
                f"the pooling {self.pooling!r} is not supported; choose one of "
                f"{', '.join(POOLINGS)}"
            )
        activation(self.act)


class Transform(nnx.Module):
    """y = norm(act(dense(x))), with or without the norm."""

    def __init__(
        self,
        dim: int,
        out_dim: int,
        config: TextHeadConfig,
        make: LayerFactory,
        *,
        norm_eps: float,
        norm_bias: bool,
    ) -> None:
        self.act = config.act
        self.dense = make.dense({"dim": dim}, {"features": out_dim}, bias=config.transform_bias)
        self.norm = (
            make.layer_norm(out_dim, norm_eps, bias=norm_bias) if config.transform_norm else None
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        y = activation(self.act)(self.dense(x))
        return y if self.norm is None else self.norm(y)


class TextHead(nnx.Module):
    """Maps the encoder's vectors to the outputs of a task; see TASKS for their names.

    It is that of an encoder's config, which has its own config as `head`.
    """

    def __init__(self, encoder: Any, *, norm_bias: bool = True, rngs: nnx.Rngs) -> None:
        make, dim = LayerFactory.of(encoder, rngs), encoder.dim
        config: TextHeadConfig = encoder.head
        embedding_dim = getattr(encoder, "embedding_dim", dim)
        fills = config.task == "fill-mask"
        transform_dim = config.transform_dim or (embedding_dim if fills else dim)
        norm = {"norm_eps": encoder.norm_eps, "norm_bias": norm_bias}
        self.config = config
        self.transform = (
            Transform(dim, transform_dim, config, make, **norm) if config.transform else None
        )
        self.output = (
            make.dense(
                {"dim": transform_dim if config.transform else dim},
                {"labels": NUM_OUTPUTS.get(config.task, config.num_labels)},
                bias=config.output_bias,
            )
            if config.task not in ("fill-mask", "feature-extraction")
            else None
        )
        # MobileBERT: the vectors of the output vocabulary are longer than the embedding's.
        words, rest = {"tokens": encoder.vocab_size}, transform_dim - embedding_dim
        self.vocab_rest = (
            make.dense({"features": rest}, words, bias=False)
            if fills and config.transform_dim is not None and rest > 0
            else None
        )
        self.vocab_bias = make.constant(**words) if fills and config.output_bias else None

    def __call__(self, hidden: jax.Array, real: jax.Array | None, embedding: Embedding) -> Outputs:
        """Outputs, FP32, of hidden [B, T, D] (with choices, B counts them all); real [B, T] is
        False at padding; the embedding is the encoder's."""
        return TASKS[self.config.task](self, hidden, real, embedding)

    def pooled(self, hidden: jax.Array, real: jax.Array | None) -> jax.Array:
        """The pooled vector of each text, [B, D]."""
        return POOLINGS[self.config.pooling](hidden, real)

    def scores(self, x: jax.Array) -> jax.Array:
        """The outputs of vectors [..., D], FP32 [..., num_labels]."""
        if self.output is None:
            raise TypeError(f"the task {self.config.task} has no labels")
        x = x if self.transform is None else self.transform(x)
        return self.output(x).astype(jnp.float32)


def _first(hidden: jax.Array, real: jax.Array | None) -> jax.Array:
    return hidden[:, 0]


def _last(hidden: jax.Array, real: jax.Array | None) -> jax.Array:
    """The last token that is not padding."""
    if real is None:
        return hidden[:, -1]
    last = jnp.max(jnp.where(real, jnp.arange(hidden.shape[1]), 0), axis=1)
    return jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]


def _mean(hidden: jax.Array, real: jax.Array | None) -> jax.Array:
    if real is None:
        return jnp.mean(hidden, axis=1)
    weights = real.astype(hidden.dtype)[..., None]
    return jnp.sum(hidden * weights, axis=1) / jnp.sum(weights, axis=1)


def _end(hidden: jax.Array, real: jax.Array | None) -> jax.Array:
    """The last place, be it padding or not."""
    return hidden[:, -1]


POOLINGS: Mapping[str, Callable[[jax.Array, jax.Array | None], jax.Array]] = {
    "first": _first,
    "last": _last,
    "end": _end,
    "mean": _mean,
}


def _features(
    head: TextHead, hidden: jax.Array, real: jax.Array | None, embedding: Embedding
) -> Outputs:
    """hidden [B, T, D], and, of encoders with a pooler, pooled [B, D]."""
    features = {"hidden": hidden.astype(jnp.float32)}
    if head.transform is not None:
        features["pooled"] = head.transform(head.pooled(hidden, real)).astype(jnp.float32)
    return features


def _fill_mask(
    head: TextHead, hidden: jax.Array, real: jax.Array | None, embedding: Embedding
) -> Outputs:
    """The logits [B, T, V] of the tokens in place of masks."""
    x = hidden if head.transform is None else head.transform(hidden)
    if head.vocab_rest is None:
        logits = embedding.logits(x)
    else:
        x, rest = jnp.split(x, [embedding.table.shape[-1]], axis=-1)
        logits = embedding.logits(x) + head.vocab_rest(rest).astype(jnp.float32)
    if head.vocab_bias is not None:
        logits = logits + head.vocab_bias[...].astype(jnp.float32)
    return {"logits": logits}


def _classify_text(
    head: TextHead, hidden: jax.Array, real: jax.Array | None, embedding: Embedding
) -> Outputs:
    """logits [B, num_labels]; of multiple choice [B · C, 1]."""
    return {"logits": head.scores(head.pooled(hidden, real))}


def _classify_tokens(
    head: TextHead, hidden: jax.Array, real: jax.Array | None, embedding: Embedding
) -> Outputs:
    """The logits [B, T, num_labels] of each token's classes."""
    return {"logits": head.scores(hidden)}


def _answer(
    head: TextHead, hidden: jax.Array, real: jax.Array | None, embedding: Embedding
) -> Outputs:
    """start_logits and end_logits [B, T]."""
    start, end = jnp.unstack(head.scores(hidden), axis=-1)
    return {"start_logits": start, "end_logits": end}


TaskHead = Callable[[TextHead, jax.Array, jax.Array | None, Embedding], Outputs]

TASKS: Mapping[str, TaskHead] = {
    "feature-extraction": _features,
    "fill-mask": _fill_mask,
    "text-classification": _classify_text,
    "token-classification": _classify_tokens,
    "question-answering": _answer,
    "multiple-choice": _classify_text,
}
NUM_OUTPUTS: Mapping[str, int] = {"question-answering": 2, "multiple-choice": 1}
