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
    capacity = min(context, power_of_two(end))
    ended = np.zeros(len(text) * sequences, bool)  # on the host: where it lies is compiled for
    policy, temperature = policy_of(sampling, constraints, ending)
    copies = sequences  # of a row, until there are as many
    room = 0
    while text.shape[1] < end:
        if room == 0:
            window = text if text.shape[1] < context else text[:, -(context // 2) :]
            unused = hidden(pad, text.shape[1] - window.shape[1])
            of_rows = inputs or {}
            if copies < sequences:
                of_rows = {name: np.repeat(x, sequences, axis=0) for name, x in of_rows.items()}
            logits, cache = prefill(
                graph, parameters, window, unused, of_rows, capacity, copies=copies
            )
            if copies > 1:
                text, window, pad = (np.repeat(x, copies, axis=0) for x in (text, window, pad))
                unused = None if unused is None else np.repeat(unused, copies, axis=0)
                copies = 1
            position = window.shape[1]
            room = _phase_end(position, context, boundaries) - position
        made = text.shape[1] - first_new
        slots = np.pad(text[:, -position:], ((0, 0), (0, capacity + CHUNK - position)))
        logits, cache, tokens, all_ended = _decode(
            graph,
            parameters,
            logits,
            cache,
            slots if constraints.look_back else None,
            _Place(position, Number(made, max_new_tokens), unused, ended, key, temperature),
            policy,
        )
        count = min(room, end - text.shape[1], CHUNK)
        ends = np.asarray(all_ended)[:, :count]
        finished = np.flatnonzero(np.all(ends, axis=0))
        piece = np.asarray(tokens)[:, : finished[0] + 1 if finished.size else count]
        ended = ends[:, -1]
        position, room = position + count, room - count
        text = np.concatenate([text, piece], axis=1)
        is_enough = on_tokens is not None and on_tokens(piece)
        if finished.size or is_enough:
            break
    return text[:, first_new:]


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
    """Where a chunk stands."""

    position: ArrayLike  # the slot of its first token
    number: Number
    pad: ArrayLike | None  # the unused slots of each row [B]
    ended: ArrayLike  # whether each row has, bool [B]
    key: jax.Array
    temperature: ArrayLike  # divides logits that are drawn from


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
