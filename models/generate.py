"""Text generation: one prefill, then a jitted loop over tokens with a cache of static shape.

Rows of unequal length are aligned at their end, so that all of them write the same cache slot; the
unused slots at the beginning of a row are hidden from it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import ArrayLike

from models.errors import GenerationError
from models.parameters import merge
from models.sampling import Sampling, sample

CHUNK = 16  # tokens per jitted call: text arrives in pieces of this length


class Decoder(Protocol):
    """The interface of a model for generation; the cache is any tree of arrays."""

    def init_cache(self, batch: int, length: int, **inputs: jax.Array) -> Any:
        """An empty cache of `length` slots. An encoder-decoder runs its encoder over `inputs`
        here and keeps what the decoder looks at."""

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

        The first pad[b] slots of row b hold no text: nothing may look at them, and position 0 is
        the slot after them. `last`: only the logits [B, 1, V] of that index in `tokens` are wanted,
        and what follows it in `tokens` is no text.
        """


class Ending(NamedTuple):
    """When rows end, and what follows."""

    stop_tokens: tuple[int, ...] = ()  # a row ends after any of these
    pad_token: int = 0  # what a row that has ended is filled with


def generate(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    prompt: np.ndarray,
    *,
    max_new_tokens: int,
    context: int,
    sampling: Sampling,
    key: jax.Array,
    real: np.ndarray | None = None,
    ending: Ending = Ending(),  # noqa: B008 (immutable)
    boundaries: Sequence[int] = (),
    restart: bool = False,
    inputs: Mapping[str, np.ndarray] | None = None,
    on_tokens: Callable[[np.ndarray], None] | None = None,
) -> np.ndarray:
    """New tokens int32 [B, n] after prompt int32 [B, T], n ≤ max_new_tokens.

    Args:
      graph, parameters: `models.parameters.split` of a `Decoder`.
      context: the longest text that the model may see, in tokens.
      key: of the draws. The tokens depend on it, not on the sizes of the pieces.
      real: bool [B, T], False where the prompt is padding, left or right; None = no padding.
      ending: n is the smallest number of tokens after which every row has ended.
      boundaries: text lengths beyond which the cache is filled anew (`config.boundaries`).
      restart: when the context is full, its second half becomes the new prompt. Without it a text
        that would outgrow the context is refused.
      inputs: what an encoder-decoder's `init_cache` takes.
      on_tokens: receives each new piece [B, m] as soon as it is there.

    Raises GenerationError if a prompt is empty, has tokens outside the vocabulary or is longer than
    the context, or the text would be.
    """
    text, pad = _aligned(prompt, real)
    _check(text.shape[1], pad, max_new_tokens, context, restart)
    if "embedding.table" in parameters:
        _check_vocabulary(text, parameters["embedding.table"].shape[0])
    first_new, end = text.shape[1], text.shape[1] + max_new_tokens
    capacity = min(context, _power_of_two(end))
    ended = jnp.zeros(len(text), bool)
    # Every temperature above 0 has the same program.
    untempered = replace(sampling, temperature=float(sampling.temperature > 0))
    room = 0
    while text.shape[1] < end:
        if room == 0:
            window = text if text.shape[1] < context else text[:, -(context // 2) :]
            hidden = _hidden(pad, text.shape[1] - window.shape[1])
            logits, cache = _prefill(
                graph, parameters, *_padded(window, capacity), hidden, inputs or {}, capacity
            )
            position = window.shape[1]
            room = _phase_end(position, context, boundaries) - position
        made = text.shape[1] - first_new
        logits, cache, tokens, all_ended = _decode(
            graph,
            parameters,
            logits,
            cache,
            (position, made, hidden, ended, key),
            np.float32(sampling.temperature or 1),
            untempered,
            ending,
        )
        count = min(room, end - text.shape[1], CHUNK)
        finished = np.flatnonzero(np.all(np.asarray(all_ended)[:, :count], axis=0))
        piece = np.asarray(tokens)[:, : finished[0] + 1 if finished.size else count]
        ended = all_ended[:, count - 1]
        position, room = position + count, room - count
        text = np.concatenate([text, piece], axis=1)
        if on_tokens is not None:
            on_tokens(piece)
        if finished.size:
            break
    return text[:, first_new:]


def _check(length: int, pad: np.ndarray, max_new_tokens: int, context: int, restart: bool) -> None:
    if length == 0 or (pad == length).any():
        raise GenerationError("the prompt is empty: give at least one token")
    if context < 2:
        raise GenerationError(f"context={context} is too short: at least 2 is needed")
    if length > context:
        raise GenerationError(
            f"the prompt has {length} tokens, but the model's context holds {context}. Shorten it."
        )
    if not restart and length + max_new_tokens > context:
        raise GenerationError(
            f"a prompt of {length} tokens and {max_new_tokens} new ones do not fit the model's "
            f"context of {context}. Ask for at most {context - length} new tokens."
        )


def _check_vocabulary(text: np.ndarray, vocab_size: int) -> None:
    unknown = np.unique(text[(text < 0) | (text >= vocab_size)])
    if unknown.size:
        raise GenerationError(
            f"the prompt holds the token {unknown[0]}, but the model's vocabulary has {vocab_size} "
            "tokens, counted from 0. Check that the tokenizer is the model's."
        )


def _aligned(prompt: np.ndarray, real: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The rows' real tokens aligned at their end [B, T'], and the unused places before them [B]."""
    if real is None:
        return prompt.astype(np.int32), np.zeros(len(prompt), np.int32)
    rows = [row[keep] for row, keep in zip(prompt, real.astype(bool), strict=True)]
    width = max((len(row) for row in rows), default=0)
    pad = np.array([width - len(row) for row in rows], np.int32)
    aligned = [np.pad(row, (p, 0)) for row, p in zip(rows, pad, strict=True)]
    return np.stack(aligned).astype(np.int32), pad


def _hidden(pad: np.ndarray, dropped: int) -> np.ndarray | None:
    """Unused slots of each row once `dropped` places at the beginning are gone; None if none."""
    left = np.maximum(pad - dropped, 0)
    return left if left.any() else None


def _phase_end(position: int, context: int, boundaries: Sequence[int]) -> int:
    """The length at which the text leaves the cache that was filled up to `position`.

    The token after a boundary is still drawn from logits this side of it.
    """
    return min([context, *(boundary + 1 for boundary in boundaries if position <= boundary)])


def _padded(window: np.ndarray, capacity: int) -> tuple[np.ndarray, int]:
    """The window padded at its end to a power of two, so that few lengths are compiled; and the
    index of its last token.

    What the padding leaves in the cache is overwritten before any token looks at it.
    """
    length = window.shape[1]
    padded = min(capacity, _power_of_two(length))
    return np.pad(window, ((0, 0), (0, padded - length))), length - 1


def _power_of_two(length: int) -> int:
    return max(CHUNK, 1 << (length - 1).bit_length())


@partial(jax.jit, static_argnums=(0, 6))
def _prefill(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    tokens: jax.Array,
    last: jax.Array,
    pad: jax.Array | None,
    inputs: Mapping[str, jax.Array],
    capacity: int,
) -> tuple[jax.Array, Any]:
    """Logits [B, V] after tokens[:, last], tokens [B, T], and the cache.

    The cache has room for the part of the last chunk that lies beyond the text.
    """
    model: Decoder = merge(graph, parameters)
    cache = model.init_cache(tokens.shape[0], capacity + CHUNK, **inputs)
    logits, cache = model.extend(tokens, cache, 0, pad=pad, last=last)
    return logits[:, 0], cache


@partial(jax.jit, static_argnums=(0, 6, 7), donate_argnums=(2, 3))
def _decode(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    logits: jax.Array,
    cache: Any,
    place: tuple[ArrayLike, ArrayLike, jax.Array | None, jax.Array, jax.Array],
    temperature: ArrayLike,
    sampling: Sampling,
    ending: Ending,
) -> tuple[jax.Array, Any, jax.Array, jax.Array]:
    """CHUNK tokens [B, CHUNK], the first one from `logits`, and whether each row has ended with
    each of them [B, CHUNK].

    place: the first one's slot, how many tokens were made before it, the unused slots of each row
    [B], whether each row has ended [B], the key. The temperature divides
    logits that are drawn from.
    """
    model: Decoder = merge(graph, parameters)
    position, made, pad, ended, key = place
    stops = jnp.array(ending.stop_tokens, jnp.int32)

    def step(
        carry: tuple[jax.Array, Any, jax.Array], index: jax.Array
    ) -> tuple[tuple[jax.Array, Any, jax.Array], tuple[jax.Array, jax.Array]]:
        logits, cache, ended = carry
        number = made + index
        draw = jax.random.fold_in(key, number)
        tempered = logits if sampling.temperature == 0 else logits / temperature
        token = sample(tempered, draw, sampling, is_first=number == 0)
        if ending.stop_tokens:
            token = jnp.where(ended, ending.pad_token, token)
            ended |= (token[:, None] == stops).any(axis=-1)
        logits, cache = model.extend(token[:, None], cache, position + index, pad=pad)
        return (logits[:, 0], cache, ended), (token, ended)

    carry, (tokens, all_ended) = jax.lax.scan(step, (logits, cache, ended), jnp.arange(CHUNK))
    return carry[0], carry[1], tokens.T, all_ended.T
