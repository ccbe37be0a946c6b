"""What a model makes of whole texts, by the task that it is made for.

Axis names: R texts, T tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from launch.errors import ModelError
from models.pretrained import Pretrained
from models.sentences.config import CLS, LAST
from models.sentences.model import SentenceHead


class Texts(NamedTuple):
    """A batch of R texts, padded to T tokens."""

    tokens: jax.Array | np.ndarray  # int32 [R, T], padded at the end
    types: jax.Array | np.ndarray  # int32 [R, T]: 1 in the second text of a pair
    counts: jax.Array | np.ndarray  # int32 [R]: tokens of each

    @property
    def real(self) -> jax.Array:
        """bool [R, T], False at padding."""
        return jnp.arange(self.tokens.shape[1]) < self.counts[:, None]


Head = Callable[[Any, Texts, SentenceHead, bool], jax.Array]


def _encoder_vectors(
    model: Any, texts: Texts, sentence: SentenceHead, has_types: bool
) -> jax.Array:
    return sentence(_outputs(model, texts, has_types)["hidden"], texts.real)


def _decoder_vectors(
    model: Any, texts: Texts, sentence: SentenceHead, has_types: bool
) -> jax.Array:
    # Texts begin their rows, so that no token sees the padding behind them.
    return sentence(model.encode(texts.tokens), texts.real)


def _classes(model: Any, texts: Texts, sentence: SentenceHead, has_types: bool) -> jax.Array:
    return _outputs(model, texts, has_types)["logits"]


def _word_scores(model: Any, texts: Texts, sentence: SentenceHead, has_types: bool) -> jax.Array:
    return sentence(_outputs(model, texts, has_types)["logits"], texts.real)


def _common_vectors(model: Any, texts: Texts, sentence: SentenceHead, has_types: bool) -> jax.Array:
    return sentence(model.encode(texts.tokens).pooled, texts.real)


def _outputs(model: Any, texts: Texts, has_types: bool) -> Mapping[str, jax.Array]:
    types = {"types": texts.types} if has_types else {}
    outputs: Mapping[str, jax.Array] = model(texts.tokens, real=texts.real, **types)
    return outputs


@dataclass(frozen=True)
class TaskHead:
    """The computation that answers a task, from a batch of texts to FP32 rows."""

    compute: Head  # (model, texts, sentence head, whether it tells types apart) -> FP32 [R, …]
    classifies: bool = False  # logits of classes, and no vectors
    pooling: str = CLS  # if the model's files do not say it


HEADS: Mapping[str, TaskHead] = {
    "feature-extraction": TaskHead(_encoder_vectors),
    "text-generation": TaskHead(_decoder_vectors, pooling=LAST),
    "text-classification": TaskHead(_classes, classifies=True),
}


WORDS = TaskHead(_word_scores)
"""The head of a model that fills masks: how much each word of its vocabulary counts."""
COMMON = TaskHead(_common_vectors)
"""The head of a model with towers for texts and images: vectors in their common space."""


def task_head(model: Pretrained) -> TaskHead:
    """The head for the task that a model is made for.

    Raises:
      ModelError: the task has no vectors or classes of whole texts.
    """
    task = model.architecture.task
    if task not in HEADS:
        raise ModelError(
            f"{model.architecture.name} is made for {task}, so it has no embeddings or classes of "
            f"whole texts. Choose a model for {', '.join(HEADS)}."
        )
    return HEADS[task]
