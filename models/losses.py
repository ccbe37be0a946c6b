"""Training objectives, computed in FP32."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

NO_WORD = -1e30
"""The logit of what is no word, class or choice, but fills up an array: no loss counts it."""


class TokenLosses(NamedTuple):
    """The losses per target, FP32 [...]."""

    nats: jax.Array  # -log softmax(logits)[target]
    loss: jax.Array  # the same with smoothed labels and the z-loss, if there are any


def cross_entropy(logits: jax.Array, targets: jax.Array, axes: tuple[str, ...] = ()) -> jax.Array:
    """-log softmax(logits)[target] in nats: logits [..., V], targets [...] -> FP32 [...].

    Along mesh `axes`, each core has the logits of a part of the vocabulary, [..., V/cores].
    """
    return token_losses(logits, targets, axes).nats


def token_losses(
    logits: jax.Array,
    targets: jax.Array,
    axes: tuple[str, ...] = (),
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    plain: Callable[[jax.Array, jax.Array], jax.Array] | None = None,
) -> TokenLosses:
    """The cross entropy of each token; a share `label_smoothing` of each label is spread evenly
    over the vocabulary (Szegedy et al., 2016), and z_loss · log²(Σ exp logits) is added (Chowdhery
    et al., "PaLM", 2022).

    `plain` may compute cross entropy where nothing is added and the vocabulary is whole.

    The target's logit is selected by comparison rather than by a gather, so that a vocabulary split
    over devices stays split.
    """
    if plain is not None and not (axes or label_smoothing or z_loss):
        nats = plain(logits, targets)
        return TokenLosses(nats, nats)
    logits = logits.astype(jnp.float32)
    own = jnp.arange(logits.shape[-1])
    if axes:
        own = own + jax.lax.axis_index(axes) * logits.shape[-1]
    is_target = targets[..., None] == own
    target = _sum(jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1), axes)
    normalizer = _log_sum_exp(logits, axes)
    nats = loss = normalizer - target
    if label_smoothing:
        is_word = logits > NO_WORD
        size = _sum(jnp.sum(is_word, axis=-1, dtype=jnp.float32), axes)
        total = _sum(jnp.sum(jnp.where(is_word, logits, 0.0), axis=-1), axes)
        even = normalizer - total / size
        loss = (1 - label_smoothing) * loss + label_smoothing * even
    if z_loss:
        loss = loss + z_loss * jnp.square(normalizer)
    return TokenLosses(nats, loss)


def _log_sum_exp(logits: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    if not axes:
        return jax.nn.logsumexp(logits, axis=-1)
    largest = jax.lax.pmax(jax.lax.stop_gradient(jnp.max(logits, axis=-1)), axes)
    return largest + jnp.log(_sum(jnp.sum(jnp.exp(logits - largest[..., None]), axis=-1), axes))


def _sum(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    return jax.lax.psum(x, axes) if axes else x
