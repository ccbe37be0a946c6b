"""Text generation: one prefill, then a jitted loop over tokens with a cache of static shape."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import ArrayLike

from models.layers.attention import KVCache
from models.parameters import merge
from models.sampling import Sampling, sample

CHUNK = 16  # tokens per jitted call: text arrives in pieces of this length


class Decoder(Protocol):
    """What generation needs of a model."""

    def init_cache(self, batch: int, length: int) -> list[KVCache]: ...

    def extend(
        self, tokens: jax.Array, cache: Sequence[KVCache], start: ArrayLike
    ) -> tuple[jax.Array, list[KVCache]]: ...


def generate(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    prompt: np.ndarray,
    *,
    max_new_tokens: int,
    context: int,
    sampling: Sampling,
    key: jax.Array,
    on_tokens: Callable[[np.ndarray], None] | None = None,
) -> np.ndarray:
    """New tokens [B, max_new_tokens] after prompt [B, T], T ≥ 1, both int32.

    `graph` and `parameters` come from `models.parameters.split` of a `Decoder`; `context` is the
    longest sequence it may see. When the context is full, its second half becomes the new prompt.
    `on_tokens` receives each new piece [B, n] as soon as it is there. The tokens depend on the
    key, not on the sizes of the pieces. Raises ValueError for an empty prompt or a context
    shorter than two tokens.
    """
    if prompt.shape[1] == 0:
        raise ValueError("the prompt is empty: give at least one token")
    if context < 2:
        raise ValueError(f"context={context} is too short: at least 2 is needed")
    text = prompt.astype(np.int32)
    end = text.shape[1] + max_new_tokens
    room = 0
    while text.shape[1] < end:
        if room == 0:
            window = text if text.shape[1] < context else text[:, -(context // 2) :]
            logits, cache = _prefill(graph, parameters, *_padded(window, context), context)
            position = window.shape[1]
            room = context - position
        made = text.shape[1] - prompt.shape[1]
        logits, cache, tokens = _decode(
            graph, parameters, logits, cache, position, made, key, sampling
        )
        piece = np.asarray(tokens)[:, : min(room, end - text.shape[1])]
        position, room = position + CHUNK, max(0, room - CHUNK)
        text = np.concatenate([text, piece], axis=1)
        if on_tokens is not None:
            on_tokens(piece)
    return text[:, prompt.shape[1] :]


def _padded(window: np.ndarray, context: int) -> tuple[np.ndarray, int]:
    """The window padded at its end to a power of two, so that few lengths are compiled.

    What the padding leaves in the cache is overwritten before any token looks at it.
    """
    length = window.shape[1]
    padded = min(context, max(CHUNK, 1 << (length - 1).bit_length()))
    return np.pad(window, ((0, 0), (0, padded - length))), length


@partial(jax.jit, static_argnums=(0, 4))
def _prefill(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    tokens: jax.Array,
    length: jax.Array,
    context: int,
) -> tuple[jax.Array, list[KVCache]]:
    """Logits [B, V] after the first `length` of tokens [B, T], and the cache.

    The cache has room for the part of the last chunk that lies beyond the context.
    """
    model: Decoder = merge(graph, parameters)
    logits, cache = model.extend(tokens, model.init_cache(tokens.shape[0], context + CHUNK), 0)
    return jax.lax.dynamic_index_in_dim(logits, length - 1, axis=1, keepdims=False), cache


@partial(jax.jit, static_argnums=(0, 7), donate_argnums=(2, 3))
def _decode(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    logits: jax.Array,
    cache: list[KVCache],
    position: jax.Array,
    made: jax.Array,
    key: jax.Array,
    sampling: Sampling,
) -> tuple[jax.Array, list[KVCache], jax.Array]:
    """CHUNK tokens [B, CHUNK], the first one from `logits`; `made` tokens were made before."""
    model: Decoder = merge(graph, parameters)

    def step(
        carry: tuple[jax.Array, list[KVCache]], index: jax.Array
    ) -> tuple[tuple[jax.Array, list[KVCache]], jax.Array]:
        logits, cache = carry
        token = sample(logits, jax.random.fold_in(key, made + index), sampling)
        logits, cache = model.extend(token[:, None], cache, position + index)
        return (logits[:, 0], cache), token

    (logits, cache), tokens = jax.lax.scan(step, (logits, cache), jnp.arange(CHUNK))
    return logits, cache, tokens.T
