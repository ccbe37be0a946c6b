"""The last layer of a classifier, which a model may lack."""

import jax
import jax.numpy as jnp

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
