"""Prompts for generation: rows of unequal length are aligned at their ends, and fill the cache.

All rows then write the same cache slot; the unused slots at the beginning of a row are masked.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import ArrayLike

from models.errors import GenerationError
from models.parameters import merge

CHUNK = 16  # tokens per jitted call: text arrives in pieces of this length


class Decoder(Protocol):
    """The interface of a model for generation; the cache is any tree of arrays [B, …]."""

    def init_cache(self, batch: int, length: int, **inputs: jax.Array) -> Any:
        """An empty cache of `length` slots. An encoder-decoder runs its encoder on `inputs` here
        and keeps what the decoder attends to."""

    def extend(
        self,
        tokens: jax.Array,
        cache: Any,
        start: ArrayLike,
        *,
        pad: jax.Array | None = None,
        last: ArrayLike | None = None,
    ) -> tuple[jax.Array, Any]:
        """Logits of tokens [B, T] in slots start … start + T - 1, and the extended cache.

        The first pad[b] slots of row b hold no text: nothing may attend to them, and position 0 is
        the slot after them. With `last`, only the logits [B, 1, V] at that index in `tokens` are
        returned, and whatever follows it in `tokens` is padding.
        """


def aligned(prompt: np.ndarray, real: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The rows' real tokens aligned at their ends [B, T'], and the number of unused slots before
    them [B]."""
    if real is None:
        return prompt.astype(np.int32), np.zeros(len(prompt), np.int32)
    rows = [row[keep] for row, keep in zip(prompt, real.astype(bool), strict=True)]
    width = max((len(row) for row in rows), default=0)
    pad = np.array([width - len(row) for row in rows], np.int32)
    stacked = [np.pad(row, (p, 0)) for row, p in zip(rows, pad, strict=True)]
    return np.stack(stacked).astype(np.int32), pad


def check_room(
    length: int, pad: np.ndarray, max_new_tokens: int, context: int, restart: bool
) -> None:
    """Raises GenerationError if a prompt is empty or does not fit the context, or if the new tokens
    do not fit and the text may not restart."""
    if length == 0 or (pad == length).any():
        raise GenerationError("the prompt is empty: give at least one token")
    if context < 2:
        raise GenerationError(f"context={context} is too short: it must be at least 2")
    if length > context:
        raise GenerationError(
            f"the prompt has {length} tokens, but the model's context is {context}. Shorten the "
            "prompt."
        )
    if not restart and length + max_new_tokens > context:
        raise GenerationError(
            f"a prompt of {length} tokens and {max_new_tokens} new tokens do not fit into the "
            f"model's context of {context}. Ask for at most {context - length} new tokens."
        )


def check_vocabulary(text: np.ndarray, parameters: Mapping[str, jax.Array]) -> None:
    """Raises GenerationError for tokens outside the model's embedding table, if it has one."""
    if "embedding.table" not in parameters:
        return
    vocab_size = parameters["embedding.table"].shape[0]
    unknown = np.unique(text[(text < 0) | (text >= vocab_size)])
    if unknown.size:
        raise GenerationError(
            f"the prompt has the token ID {unknown[0]}, but the model's vocabulary has only "
            f"{vocab_size} tokens, counted from 0. Check that the tokenizer belongs to the model."
        )


def hidden(pad: np.ndarray, dropped: int) -> np.ndarray | None:
    """Unused slots of each row once `dropped` slots at the beginning are gone; None if none."""
    left = np.maximum(pad - dropped, 0)
    return left if left.any() else None


def power_of_two(length: int) -> int:
    """A power of two that is at least as large, so that few lengths are compiled."""
    return max(CHUNK, 1 << (length - 1).bit_length())


def prefill(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    window: np.ndarray,
    pad: np.ndarray | None,
    inputs: Mapping[str, np.ndarray],
    capacity: int,
    *,
    copies: int = 1,
) -> tuple[jax.Array, Any]:
    """Logits [B · copies, V] after the window [B, T], and a cache of that many slots, with each row
    `copies` times.

    What the padding of the window to a power of two leaves in the cache is overwritten before any
    token attends to it. Tokens beyond the last slot, one at a time, are written over it: whoever
    needs the cache afterwards asks for more slots.
    """
    length = window.shape[1]
    padded = np.pad(window, ((0, 0), (0, min(capacity, power_of_two(length)) - length)))
    return _prefill(graph, parameters, padded, length - 1, pad, inputs, capacity, copies)


@partial(jax.jit, static_argnums=(0, 6, 7))
def _prefill(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    tokens: jax.Array,
    last: jax.Array,
    pad: jax.Array | None,
    inputs: Mapping[str, jax.Array],
    capacity: int,
    copies: int,
) -> tuple[jax.Array, Any]:
    model: Decoder = merge(graph, parameters)
    cache = model.init_cache(tokens.shape[0], capacity, **inputs)
    logits, cache = model.extend(tokens, cache, 0, pad=pad, last=last)
    if copies == 1:
        return logits[:, 0], cache
    repeated = jax.tree.map(lambda x: jnp.repeat(x, copies, axis=0), (logits[:, 0], cache))
    return repeated[0], repeated[1]
