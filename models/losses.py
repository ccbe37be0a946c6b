"""Training objectives, computed in FP32."""

import jax
import jax.numpy as jnp


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """-log softmax(logits)[target] in nats: logits [..., V], targets [...] -> FP32 [...].

    The target's logit is picked by a comparison, not a gather, so that a vocabulary split over
    devices stays split.
    """
    logits = logits.astype(jnp.float32)
    is_target = targets[..., None] == jnp.arange(logits.shape[-1])
    target_logits = jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)
    return jax.nn.logsumexp(logits, axis=-1) - target_logits
