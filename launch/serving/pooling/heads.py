"""What a model makes of whole texts, by the task that it is made for.

Axis names: R texts, T tokens, D model width, L classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from launch.serving.pooling.settings import FIRST, LAST, MEAN, PoolingSettings


class Texts(NamedTuple):
    """A batch."""

    tokens: jax.Array | np.ndarray  # int32 [R, T], padded at the end
    types: jax.Array | np.ndarray  # int32 [R, T]: 1 in the second text of a pair
    counts: jax.Array | np.ndarray  # int32 [R]: tokens of each

    @property
    def real(self) -> jax.Array:
        """bool [R, T], False at padding."""
        return jnp.arange(self.tokens.shape[1]) < self.counts[:, None]


Head = Callable[[Any, Texts, PoolingSettings, bool], jax.Array]


def pooled(hidden: jax.Array, texts: Texts, settings: PoolingSettings) -> jax.Array:
    """Vectors FP32 [R, D] of texts from those of their tokens [R, T, D]."""
    vectors = POOL[settings.pooling](hidden.astype(jnp.float32), texts)
    if not settings.normalised:
        return vectors
    length = jnp.sqrt(jnp.sum(vectors * vectors, axis=-1, keepdims=True))
    return vectors / jnp.maximum(length, 1e-12)


def _first(hidden: jax.Array, texts: Texts) -> jax.Array:
    return hidden[:, 0]


def _mean(hidden: jax.Array, texts: Texts) -> jax.Array:
    weights = texts.real[..., None].astype(hidden.dtype)
    return jnp.sum(hidden * weights, axis=1) / jnp.maximum(jnp.sum(weights, axis=1), 1)


def _last(hidden: jax.Array, texts: Texts) -> jax.Array:
    place = jnp.maximum(texts.counts - 1, 0)[:, None, None]
    return jnp.take_along_axis(hidden, place, axis=1)[:, 0]


POOL: Mapping[str, Callable[[jax.Array, Texts], jax.Array]] = {
    FIRST: _first,
    MEAN: _mean,
    LAST: _last,
}


def _encoder_vectors(
    model: Any, texts: Texts, settings: PoolingSettings, has_types: bool
) -> jax.Array:
    return pooled(_outputs(model, texts, has_types)["hidden"], texts, settings)


def _decoder_vectors(
    model: Any, texts: Texts, settings: PoolingSettings, has_types: bool
) -> jax.Array:
    # Texts begin their rows, so that no token sees the padding behind them.
    return pooled(model.encode(texts.tokens), texts, settings)


def _classes(model: Any, texts: Texts, settings: PoolingSettings, has_types: bool) -> jax.Array:
    return _outputs(model, texts, has_types)["logits"]


def _outputs(model: Any, texts: Texts, has_types: bool) -> Mapping[str, jax.Array]:
    types = {"types": texts.types} if has_types else {}
    outputs: Mapping[str, jax.Array] = model(texts.tokens, real=texts.real, **types)
    return outputs


@dataclass(frozen=True)
class TaskHead:
    """What is computed for a task."""

    compute: Head  # (model, texts, settings, whether it tells types apart) -> FP32 [R, …]
    classifies: bool = False  # logits of classes, and no vectors
    pooling: str = FIRST  # if the model's files do not say it


HEADS: Mapping[str, TaskHead] = {
    "feature-extraction": TaskHead(_encoder_vectors),
    "text-generation": TaskHead(_decoder_vectors, pooling=LAST),
    "text-classification": TaskHead(_classes, classifies=True),
}
