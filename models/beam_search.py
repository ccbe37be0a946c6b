"""Beam search: finds the most likely texts, several for each prompt if asked.

Graves, "Sequence Transduction with Recurrent Neural Networks", 2012, with the scores and stopping
rules of transformers. Axis names: B prompts, K beams per prompt, N candidates for the next step,
V vocabulary, S slots.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import ArrayLike

from models.constraints import Constraints, Ending, Number, Text, constrained
from models.errors import GenerationError
from models.parameters import merge
from models.prompts import CHUNK, Decoder, hidden, power_of_two, prefill

_NEVER = "never"
_NONE = -1e9  # added to scores that must not be chosen


@dataclass(frozen=True)
class Beams:
    """Settings of a beam search. Raises GenerationError if a field is out of range."""

    count: int
    length_penalty: float = 1.0  # a text's score is log p / length ** this
    # True: ends when `count` texts have ended; False: when a guess says that none will be better;
    # "never": when none can be.
    early_stopping: bool | str = False

    def __post_init__(self) -> None:
        if self.count < 1:
            raise GenerationError(f"beam search needs at least 1 beam, but num_beams={self.count}")
        if self.early_stopping not in (True, False, _NEVER):
            raise GenerationError(
                f"early_stopping={self.early_stopping!r} is not supported; choose True, False or "
                f"{_NEVER!r}"
            )


class _Running(NamedTuple):
    """Texts that have not ended."""

    tokens: jax.Array  # int32 [B, K, S], by slot
    scores: jax.Array  # FP32 [B, K], log p


class _Ended(NamedTuple):
    """The best texts that have ended, best first; places that no text has come to score _NONE."""

    tokens: jax.Array  # int32 [B, K, S]
    scores: jax.Array  # FP32 [B, K]
    lengths: jax.Array  # int32 [B, K], new tokens
    is_there: jax.Array  # bool [B, K]


class _State(NamedTuple):
    running: _Running
    ended: _Ended
    can_improve: jax.Array  # bool [B]
    done: jax.Array  # bool []


def search(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    prompt: np.ndarray,
    pad: np.ndarray,
    inputs: Mapping[str, np.ndarray],
    max_new_tokens: int,
    beams: Beams,
    sequences: int,
    rules: Constraints,
    ending: Ending,
) -> np.ndarray:
    """The best new texts int32 [B · sequences, n] after aligned prompts [B, T] with pad [B] unused
    slots; shorter texts are filled up with the pad token. See `models.generate.generate`.

    Raises GenerationError if there are more sequences than beams.
    """
    if sequences > beams.count:
        raise GenerationError(
            f"{beams.count} beams cannot return {sequences} sequences. Use at least {sequences} "
            "beams, or ask for fewer sequences."
        )
    rows, length = prompt.shape
    capacity = power_of_two(length + max_new_tokens)
    unused = hidden(pad, 0)
    logits, cache = prefill(graph, parameters, prompt, unused, inputs, capacity, copies=beams.count)
    if unused is not None:
        unused = np.repeat(unused, beams.count, axis=0)
    state = _begin(np.pad(prompt, ((0, 0), (0, capacity + CHUNK - length))), beams.count)
    most = np.int32(max_new_tokens)
    for made in range(0, max_new_tokens, CHUNK):
        place = (np.int32(length + made), Number(np.int32(made), most), unused)
        logits, cache, state = _advance(
            graph, parameters, logits, cache, state, place, beams, rules, ending
        )
        if state.done:
            break
    tokens = np.asarray(state.ended.tokens)[:, :sequences, length:]
    lengths = np.asarray(state.ended.lengths)[:, :sequences]
    tokens = np.where(np.arange(tokens.shape[-1]) < lengths[..., None], tokens, ending.pad_token)
    return tokens.reshape(rows * sequences, -1)[:, : lengths.max()]


def _begin(prompts: np.ndarray, count: int) -> _State:
    """Only the first beam of a prompt counts: the others are the same text."""
    rows = len(prompts)
    tokens = np.repeat(prompts[:, None], count, axis=1)
    scores = np.where(np.arange(count) > 0, np.float32(_NONE), np.float32(0))
    nothing = jnp.full((rows, count), _NONE, jnp.float32)
    lengths, is_there = jnp.zeros((rows, count), jnp.int32), jnp.zeros((rows, count), bool)
    running = _Running(jnp.array(tokens), jnp.array(np.tile(scores, (rows, 1))))
    ended = _Ended(jnp.array(tokens), nothing, lengths, is_there)
    return _State(running, ended, jnp.ones(rows, bool), jnp.zeros((), bool))


@partial(jax.jit, static_argnums=(0, 6, 7, 8), donate_argnums=(2, 3, 4))
def _advance(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    logits: jax.Array,
    cache: Any,
    state: _State,
    place: tuple[ArrayLike, Number, jax.Array | None],
    beams: Beams,
    rules: Constraints,
    ending: Ending,
) -> tuple[jax.Array, Any, _State]:
    """CHUNK steps from logits [B · K, V]; the state stays once the search is done.

    place: the slot of the first new token, its number, and the unused slots of each row [B · K].
    """
    model: Decoder = merge(graph, parameters)
    slot, number, pad = place
    begin = jnp.zeros(len(logits), jnp.int32) if pad is None else pad

    def step(carry: Any, index: jax.Array) -> tuple[Any, None]:
        logits, cache, state = carry
        here, current = slot + index, number._replace(made=number.made + index)
        tokens = state.running.tokens
        text = Text(tokens.reshape(-1, tokens.shape[-1]), begin, here)
        likely = constrained(jax.nn.log_softmax(logits), rules, text, current, ending)
        after, parents = _step(state, likely, here, current, beams, ending)
        state = jax.tree.map(lambda old, new: jnp.where(state.done, old, new), state, after)
        cache = jax.tree.map(lambda x: x[parents], cache)
        latest = jax.lax.dynamic_slice_in_dim(state.running.tokens, here, 1, axis=2)
        logits, cache = model.extend(latest.reshape(-1, 1), cache, here, pad=pad)
        return (logits[:, 0], cache, state), None

    carry, _ = jax.lax.scan(step, (logits, cache, state), jnp.arange(CHUNK))
    return carry


def _step(
    state: _State, likely: jax.Array, slot: jax.Array, number: Number, beams: Beams, ending: Ending
) -> tuple[_State, jax.Array]:
    """The state after one more token, whose log p are `likely` [B · K, V]; and the rows [B · K]
    that its running beams come from."""
    rows, width, vocab = *state.running.scores.shape, likely.shape[-1]
    scores = likely.reshape(rows, width, vocab) + state.running.scores[..., None]
    # Enough that as many go on as there are beams, even if the best ones all end.
    candidates = min(max(2, 1 + len(ending.stop_tokens)) * width, width * vocab)
    scores, chosen = jax.lax.top_k(scores.reshape(rows, -1), candidates)
    parents, tokens = chosen // vocab, (chosen % vocab).astype(jnp.int32)
    texts = jnp.take_along_axis(state.running.tokens, parents[..., None], axis=1)
    texts = jax.lax.dynamic_update_slice_in_dim(texts, tokens[..., None], slot, axis=2)
    stops = jnp.array(ending.stop_tokens, jnp.int32)
    ends = (tokens[..., None] == stops).any(axis=-1) | (number.made == number.most - 1)

    going_on = scores + ends * _NONE
    _, best = jax.lax.top_k(going_on, width)
    running = _Running(*(_pick(x, best) for x in (texts, going_on)))
    ended = _with_ended(state, texts, scores, ends, number, beams)
    can_improve = state.can_improve & _can_improve(running, ended, number, beams)
    all_ended = jnp.all(ended.is_there) if beams.early_stopping is True else False
    done = ~jnp.any(can_improve) | all_ended | jnp.all(ends)
    origins = _pick(parents, best) + jnp.arange(rows)[:, None] * width
    return _State(running, ended, can_improve, done), origins.reshape(-1)


def _with_ended(
    state: _State,
    texts: jax.Array,
    scores: jax.Array,
    ends: jax.Array,
    number: Number,
    beams: Beams,
) -> _Ended:
    """The best of the texts that had ended and of the candidates that do now; only those among the
    first K candidates count."""
    length = number.made + 1
    just = ends & (jnp.arange(ends.shape[1]) < beams.count)
    own = scores / jnp.asarray(length, jnp.float32) ** beams.length_penalty
    if beams.early_stopping is True:
        own = own + jnp.all(state.ended.is_there, axis=-1, keepdims=True) * _NONE
    own = own + ~state.can_improve[:, None] * _NONE + ~just * _NONE
    now = _Ended(texts, own, jnp.broadcast_to(length, just.shape).astype(jnp.int32), just)
    both = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), state.ended, now)
    _, best = jax.lax.top_k(both.scores, beams.count)
    return _Ended(*(_pick(x, best) for x in both))


def _can_improve(running: _Running, ended: _Ended, number: Number, beams: Beams) -> jax.Array:
    """Whether the best running text of a prompt could still be better than the worst that has
    ended, bool [B]; by its present length, unless it is to be sure and longer texts score more."""
    is_sure = beams.early_stopping == _NEVER and beams.length_penalty > 0
    length = jnp.asarray(number.most if is_sure else number.made + 1, jnp.float32)
    best = running.scores[:, :1] / length**beams.length_penalty
    worst = jnp.min(ended.scores, axis=-1, keepdims=True)
    return jnp.any(best > jnp.where(ended.is_there, worst, _NONE), axis=-1)


def _pick(x: jax.Array, places: jax.Array) -> jax.Array:
    """x [B, N, …] at places [B, K] -> [B, K, …]."""
    return jax.vmap(lambda row, own: row[own])(x, places)
