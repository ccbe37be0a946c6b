"""The last layer of a classifier, which a model may lack."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from models.errors import ConfigError
from models.layers.linear import Linear


def classify(head: Linear | None, x: jax.Array) -> jax.Array:
    """Logits of x [B, D], FP32 [B, L]. Raises ConfigError if there is no classifier."""
    if head is None:
        raise ConfigError(
            "this model has no classifier and only gives features. Set num_labels in its config, "
            "or load a checkpoint for classification."
        )
    return head(x).astype(jnp.float32)


def make_classifier(
    dim: int, labels: int | None, *, stddev: float, param_dtype: DTypeLike, rngs: nnx.Rngs
) -> Linear | None:
    """The layer, unless there are no labels."""
    if labels is None:
        return None
    return Linear(
        {"dim": dim},
        {"label": labels},
        bias=True,
        stddev=stddev,
        param_dtype=param_dtype,
        rngs=rngs,
    )
