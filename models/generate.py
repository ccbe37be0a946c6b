"""Text generation: one prefill, then a jitted loop over tokens with a cache of static shape."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import ArrayLike

from models.beam_search import Beams, search
from models.constraints import Constraints, Ending, Number, Text, constrained
from models.errors import GenerationError
from models.parameters import merge
from models.prompts import (
    CHUNK,
    Decoder,
    aligned,
    check_room,
    check_vocabulary,
    hidden,
    power_of_two,
    prefill,
)
from models.sampling import Sampling, sample


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
    constraints: Constraints = Constraints(),  # noqa: B008 (immutable)
    beams: Beams | None = None,
    sequences: int = 1,
    boundaries: Sequence[int] = (),
    restart: bool = False,
    inputs: Mapping[str, np.ndarray] | None = None,
    on_tokens: Callable[[np.ndarray], object] | None = None,
) -> np.ndarray:
    """New tokens int32 [B · sequences, n] after prompt int32 [B, T], n ≤ max_new_tokens.

    Args:
      graph, parameters: `models.parameters.split` of a `Decoder`.
      context: the longest text that the model may see, in tokens.
      key: random key for sampling. The tokens depend on it, but not on the sizes of the pieces.
      real: bool [B, T], False where the prompt is padding, left or right; None = no padding.
      ending: n is the smallest number of tokens after which every row has ended.
      constraints: constraints on new tokens.
      beams: search for the most likely texts instead of choosing token by token.
      sequences: texts per prompt, in adjacent rows: samples, or the best of the beams.
      boundaries: text lengths beyond which the cache is refilled (`config.boundaries`).
      restart: when the context is full, its second half becomes the new prompt. Without it, a text
        that would outgrow the context is refused.
      inputs: the arguments of an encoder-decoder's `init_cache`.
      on_tokens: receives each new piece [B · sequences, m] as soon as it is ready. If it returns
        something true, generation stops.

    Raises GenerationError if a prompt is empty, has tokens outside the vocabulary or is longer than
    the context, or if the text would be; for several sequences that would be identical; and for
    beams that are to sample, to cross a boundary or to restart.
    """
    text, pad = aligned(prompt, real)
    check_room(text.shape[1], pad, max_new_tokens, context, restart and beams is None)
    check_vocabulary(text, parameters)
    if beams is not None:
        if sampling.temperature > 0:
            raise GenerationError("beam search does not sample: use temperature=0")
        check_boundaries(text.shape[1], max_new_tokens, boundaries)
        made = search(
            graph, parameters, text, pad, inputs or {}, max_new_tokens, beams, sequences,
            constraints, ending,
        )  # fmt: skip
        if on_tokens is not None:
            on_tokens(made)
        return made
    if sequences > 1 and sampling.temperature == 0:
        raise GenerationError(
            f"{sequences} sequences would be identical at temperature=0. Use a higher "
            "temperature, or beam search."
        )
    first_new, end = text.shape[1], text.shape[1] + max_new_tokens
    reach = _Reach(context, min(context, power_of_two(end)), boundaries)
    policy, temperature = policy_of(sampling, constraints, ending)
    texts = _Texts(graph, parameters, reach, text, pad, inputs or {}, sequences)
    ended = np.zeros(len(text) * sequences, bool)  # on the host: where it lies is compiled for
    while texts.length < end:
        if texts.room == 0:
            texts.read()
        count = min(texts.room, end - texts.length, CHUNK)
        number = Number(texts.length - first_new, max_new_tokens)
        tokens, ends = texts.follow(number, ended, key, temperature, policy)
        finished = np.flatnonzero(np.all(ends[:, :count], axis=0))
        piece, ended = tokens[:, : finished[0] + 1 if finished.size else count], ends[:, count - 1]
        texts.append(piece)
        is_enough = on_tokens is not None and on_tokens(piece)
        if finished.size or is_enough:
            break
    return texts.tokens[:, first_new:]


def check_boundaries(length: int, max_new_tokens: int, boundaries: Sequence[int]) -> None:
    """Raises GenerationError if a text that cannot be read again would cross a boundary."""
    for boundary in boundaries:
        if length <= boundary < length + max_new_tokens:
            raise GenerationError(
                f"neither beam search nor assisted decoding continues past {boundary} tokens, "
                "where this model's rotary positions change. Ask for at most "
                f"{boundary - length} new tokens."
            )


def _phase_end(position: int, context: int, boundaries: Sequence[int]) -> int:
    """The length at which the text leaves the cache that was filled up to `position`.

    The token after a boundary is still drawn from logits this side of it.
    """
    return min([context, *(boundary + 1 for boundary in boundaries if position <= boundary)])


class Policy(NamedTuple):
    """How tokens are chosen, which a program is compiled for."""

    sampling: Sampling
    constraints: Constraints
    ending: Ending


def policy_of(
    sampling: Sampling, constraints: Constraints, ending: Ending
) -> tuple[Policy, np.float32]:
    """The policy, and what divides logits: every temperature above 0 has the same program."""
    untempered = replace(sampling, temperature=float(sampling.temperature > 0))
    return Policy(untempered, constraints, ending), np.float32(sampling.temperature or 1)


def choose(
    logits: jax.Array,
    policy: Policy,
    text: Text | None,
    number: Number,
    key: jax.Array,
    temperature: ArrayLike,
) -> jax.Array:
    """The tokens [B] that follow where the logits [B, V] stand; draws depend on the key and the
    number alone."""
    sampling, rules, ending = policy
    allowed = constrained(logits, rules, text, number, ending)
    tempered = allowed if sampling.temperature == 0 else allowed / temperature
    return sample(tempered, jax.random.fold_in(key, number.made), sampling)


class _Place(NamedTuple):
    """The place of a chunk, and what its tokens are chosen with."""

    position: ArrayLike  # the slot of its first token
    number: Number
    pad: ArrayLike | None  # the unused slots of each row [B]
    ended: ArrayLike  # whether each row has, bool [B]
    key: jax.Array
    temperature: ArrayLike  # divides logits that are drawn from


class _Reach(NamedTuple):
    """How far texts may go."""

    context: int  # the longest that a model may see
    capacity: int  # slots of a cache
    boundaries: Sequence[int]  # lengths beyond which it is filled anew


class _Texts:
    """Texts in the making, and a cache of their last tokens.

    Attributes:
      tokens: [B, T]; of each row of a prompt there are several once it has been read.
      room: how many tokens may follow before the texts have to be read into another cache.
    """

    tokens: np.ndarray
    room: int

    def __init__(
        self,
        graph: nnx.GraphDef[Any],
        parameters: Mapping[str, jax.Array],
        reach: _Reach,
        prompt: np.ndarray,
        pad: np.ndarray,
        inputs: Mapping[str, np.ndarray],
        copies: int,
    ) -> None:
        self._model, self._reach, self._inputs = (graph, parameters), reach, inputs
        self.tokens, self._pad, self._copies, self.room = prompt, pad, copies, 0

    @property
    def length(self) -> int:
        """The length of every text in tokens."""
        return self.tokens.shape[1]

    def read(self) -> None:
        """Fills a cache with the texts; with their second halves if the context is full."""
        context, capacity, boundaries = self._reach
        length = self.length if self.length < context else context // 2
        window = self.tokens[:, -length:]
        self._unused = hidden(self._pad, self.length - length)
        self._logits, self._cache = prefill(
            *self._model, window, self._unused, self._inputs, capacity, copies=self._copies
        )
        if self._copies > 1:
            self._multiply(self._copies)
        self._position = length
        self.room = _phase_end(length, context, boundaries) - length

    def _multiply(self, copies: int) -> None:
        """Repeats every text, as the cache has been repeated, so that each has copies."""
        repeat = partial(np.repeat, repeats=copies, axis=0)
        self.tokens = repeat(self.tokens)
        self._pad = repeat(self._pad)
        self._unused = None if self._unused is None else repeat(self._unused)
        self._inputs = {name: repeat(x) for name, x in self._inputs.items()}
        self._copies = 1

    def follow(
        self,
        number: Number,
        ended: np.ndarray,
        key: jax.Array,
        temperature: ArrayLike,
        policy: Policy,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The next CHUNK tokens [B, CHUNK], and whether a text has ended with each of them."""
        before = self.tokens[:, -self._position :]
        slots = np.pad(before, ((0, 0), (0, self._reach.capacity + CHUNK - self._position)))
        self._logits, self._cache, tokens, ends = _decode(
            *self._model,
            self._logits,
            self._cache,
            slots if policy.constraints.look_back else None,
            _Place(self._position, number, self._unused, ended, key, temperature),
            policy,
        )
        return np.asarray(tokens), np.asarray(ends)

    def append(self, piece: np.ndarray) -> None:
        """Adds the first of the tokens that follow."""
        self.tokens = np.concatenate([self.tokens, piece], axis=1)
        self._position += piece.shape[1]
        self.room -= piece.shape[1]


@partial(jax.jit, static_argnums=(0, 6), donate_argnums=(2, 3))
def _decode(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    logits: jax.Array,
    cache: Any,
    history: jax.Array | None,
    place: _Place,
    policy: Policy,
) -> tuple[jax.Array, Any, jax.Array, jax.Array]:
    """CHUNK tokens [B, CHUNK], the first one from `logits`, and whether each row has ended with
    each of them [B, CHUNK]; before them the logits and the cache after them.

    history: the tokens by slot [B, S], for constraints that look back.
    """
    model: Decoder = merge(graph, parameters)
    ending = policy.ending
    stops = jnp.array(ending.stop_tokens, jnp.int32)
    begin = jnp.zeros(len(logits), jnp.int32) if place.pad is None else jnp.asarray(place.pad)

    def step(carry: Any, index: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        logits, cache, history, ended = carry
        made, slot = place.number.made + index, place.position + index
        text = None if history is None else Text(history, begin, slot)
        number = place.number._replace(made=made)
        token = choose(logits, policy, text, number, place.key, place.temperature)
        if ending.stop_tokens:
            token = jnp.where(ended, ending.pad_token, token)
            ended |= (token[:, None] == stops).any(axis=-1)
        if history is not None:
            history = jax.lax.dynamic_update_slice_in_dim(history, token[:, None], slot, axis=1)
        logits, cache = model.extend(token[:, None], cache, slot, pad=place.pad)
        return (logits[:, 0], cache, history, ended), (token, ended)

    carry = (logits, cache, history, place.ended)
    (logits, cache, *_), (tokens, all_ended) = jax.lax.scan(step, carry, jnp.arange(CHUNK))
    return logits, cache, tokens.T, all_ended.T
