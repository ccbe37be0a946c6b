"""Assisted decoding: guesses of the next tokens are read all at once, and kept as far as they are
what the model would have chosen itself (Leviathan et al., "Fast Inference from Transformers via
Speculative Decoding", 2023).

Draws depend on the key and the number of a token alone, so samples too are those of `generate`, but
for rounding where two tokens are nearly alike.

Axis names: K guesses, S cache slots, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import ArrayLike

from models.beam_search import Beams
from models.constraints import Constraints, Ending, Number, Text
from models.errors import GenerationError
from models.generate import Policy, check_boundaries, choose, policy_of
from models.lookup import Lookup
from models.parameters import merge
from models.prompts import CHUNK, Decoder, check_room, check_vocabulary, power_of_two, prefill
from models.sampling import Sampling

MOST_GUESSES = CHUNK - 1  # a cache has room for CHUNK tokens behind the text


class Assistant(Protocol):
    """Guesses; wrong ones cost time and change nothing."""

    def guess(self, text: Sequence[int], count: int) -> Sequence[int]:
        """Up to `count` tokens after the text, which begins as it did the last time."""


class PromptLookup:
    """Guesses that a text repeats itself; without a model."""

    def __init__(self) -> None:
        self._lookup = Lookup()

    def guess(self, text: Sequence[int], count: int) -> Sequence[int]:
        """What followed when the end of the text came before."""
        return self._lookup.follows(text, count)


class DraftModel:
    """A smaller model with the same vocabulary guesses what it finds likeliest."""

    def __init__(
        self, graph: nnx.GraphDef[Any], parameters: Mapping[str, jax.Array], *, context: int
    ) -> None:
        self._graph, self._parameters, self._context = graph, parameters, context
        self._cache: Any = None
        self._read = 0  # tokens of the text that the cache holds

    def guess(self, text: Sequence[int], count: int) -> Sequence[int]:
        """No guesses once the text has outgrown this model's context."""
        if len(text) + count > self._context:
            return []
        if self._cache is None:
            window = np.array([text[:-1] or text], np.int32)
            capacity = self._context + CHUNK
            _, self._cache = prefill(self._graph, self._parameters, window, None, {}, capacity)
            self._read = len(text) - 1
        new = np.zeros((1, CHUNK), np.int32)
        new[0, : len(text) - self._read] = text[self._read :]
        guesses, self._cache = _draft(
            self._graph, self._parameters, self._cache, new, self._read, len(text), count
        )
        self._read = len(text)
        return np.asarray(guesses).tolist()


def generate_assisted(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    prompt: np.ndarray,
    assistant: Assistant,
    *,
    guesses: int,
    max_new_tokens: int,
    context: int,
    sampling: Sampling,
    key: jax.Array,
    ending: Ending = Ending(),  # noqa: B008 (immutable)
    constraints: Constraints = Constraints(),  # noqa: B008 (immutable)
    beams: Beams | None = None,
    sequences: int = 1,
    boundaries: Sequence[int] = (),
    on_tokens: Callable[[np.ndarray], object] | None = None,
) -> np.ndarray:
    """New tokens int32 [1, n] after a prompt int32 [1, T]; see `models.generate.generate`.

    guesses: how many tokens are guessed at a time, up to MOST_GUESSES.

    Raises GenerationError for more than one text, for beams, for a prompt that is empty, has tokens
    outside the vocabulary or does not fit the context with its new tokens, and for a text that
    would cross a boundary.
    """
    if len(prompt) * sequences != 1 or beams is not None:
        raise GenerationError(
            "assisted decoding makes one text without beams: ask for one prompt, "
            "num_return_sequences=1 and num_beams=1, or leave the assistant out"
        )
    if not 1 <= guesses <= MOST_GUESSES:
        raise GenerationError(f"guesses={guesses}, but 1 to {MOST_GUESSES} are made at a time")
    length = prompt.shape[1]
    check_room(length, np.zeros(1, np.int32), max_new_tokens, context, restart=False)
    check_vocabulary(prompt, parameters)
    check_boundaries(length, max_new_tokens, boundaries)
    text: list[int] = prompt[0].tolist()
    end = length + max_new_tokens
    slots = np.zeros(min(context, power_of_two(end)) + CHUNK, np.int32)
    _, cache = prefill(graph, parameters, prompt.astype(np.int32), None, {}, len(slots))
    policy, temperature = policy_of(sampling, constraints, ending)
    while len(text) < end:
        # The first new token is chosen alone: its place is the last of the prompt, read again.
        guess = list(assistant.guess(text, guesses))[: end - len(text) - 1]
        slots[: len(text) + len(guess)] = text + guess
        number = Number(len(text) - length, max_new_tokens)
        place = _Place(len(text) - 1, number, key, temperature)
        chosen, cache = _verify(graph, parameters, cache, slots, place, guesses + 1, policy)
        piece = _cut_guesses(np.asarray(chosen), guess, ending)
        text += piece
        is_enough = on_tokens is not None and on_tokens(np.array([piece], np.int32))
        if is_enough or piece[-1] in ending.stop_tokens:
            break
    return np.array([text[length:]], np.int32)


def _cut_guesses(chosen: np.ndarray, guess: list[int], ending: Ending) -> list[int]:
    """What the model chose [K + 1] behind right guesses, and behind the last of them, up to a stop
    token."""
    right = chosen[: len(guess)] == guess
    piece = chosen[: 1 + int(np.cumprod(right).sum())].tolist()
    stop = next((i for i, token in enumerate(piece) if token in ending.stop_tokens), len(piece))
    return piece[: stop + 1]


class _Place(NamedTuple):
    """The place from which the model reads on, and what it chooses with."""

    start: ArrayLike  # the slot of the first token that it reads
    number: Number  # of the first that it chooses
    key: jax.Array
    temperature: ArrayLike  # divides logits that are drawn from


@partial(jax.jit, static_argnums=(0, 5, 6), donate_argnums=2)
def _verify(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    cache: Any,
    slots: jax.Array,
    place: _Place,
    count: int,
    policy: Policy,
) -> tuple[jax.Array, Any]:
    """What the model chooses after each of `count` tokens [K + 1] of `slots` [S], and the cache
    with them."""
    model: Decoder = merge(graph, parameters)
    start, first, key, temperature = place
    tokens = jax.lax.dynamic_slice_in_dim(slots, start, count)[None]
    logits, cache = model.extend(tokens, cache, start)
    begin = jnp.zeros(1, jnp.int32)

    def chosen(logits: jax.Array, index: jax.Array) -> jax.Array:
        text = Text(slots[None], begin, start + 1 + index)
        number = first._replace(made=first.made + index)
        return choose(logits[None], policy, text, number, key, temperature)[0]

    return jax.vmap(chosen)(logits[0], jnp.arange(count)), cache


@partial(jax.jit, static_argnums=(0, 6), donate_argnums=2)
def _draft(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    cache: Any,
    new: jax.Array,
    start: jax.Array,
    end: jax.Array,
    count: int,
) -> tuple[jax.Array, Any]:
    """The likeliest `count` tokens after a text, of which the cache lacks `new` [1, CHUNK], padded,
    in slots start … end - 1."""
    model: Decoder = merge(graph, parameters)
    logits, cache = model.extend(new, cache, start, last=end - 1 - start)

    def step(carry: Any, index: jax.Array) -> tuple[Any, jax.Array]:
        token, cache = carry
        logits, cache = model.extend(token[:, None], cache, end + index)
        return (jnp.argmax(logits[:, 0], axis=-1), cache), token[0]

    first = jnp.argmax(logits[:, 0], axis=-1)
    (last, cache), tokens = jax.lax.scan(step, (first, cache), jnp.arange(count - 1))
    return jnp.append(tokens, last), cache
