"""Sampling of one token for each row of a batch.

Axis names: R rows, V vocabulary, W = ceil(V / 32) words of a mask.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from launch.serving.requests import MOST_LOGPROBS
from launch.serving.sampling.noise import gumbel
from launch.serving.sampling.state import SamplerState
from launch.serving.sampling.suppressed import Suppressed
from launch.serving.sampling.variants import Variant
from models.constraints import discouraged, penalised

FLOATS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)  # columns of Settings.floats: fields of SamplingParameters


class Settings(NamedTuple):
    """How the rows of a step are drawn."""

    slots: jax.Array  # int32 [R]; rows of padding have the slot S
    numbers: jax.Array  # int32 [R]: how many tokens the answer has already
    seeds: jax.Array  # uint32 [R, 2]
    top_k: jax.Array  # int32 [R]; 0 = all
    floats: jax.Array  # FP32 [R, 6]: see FLOATS

    def column(self, name: str) -> jax.Array:
        """The values [R, 1] of one of FLOATS."""
        index = FLOATS.index(name)
        return self.floats[:, index : index + 1]


def settings_shapes(rows: int, sharding: jax.sharding.Sharding) -> Settings:
    """Settings of so many rows as shapes."""

    def shape(dtype: str, *more: int) -> Any:
        return jax.ShapeDtypeStruct((rows, *more), dtype, sharding=sharding)

    return Settings(
        shape("int32"),
        shape("int32"),
        shape("uint32", 2),
        shape("int32"),
        shape("float32", len(FLOATS)),
    )


class Drawn(NamedTuple):
    """What a step drew; the last three are of variants that tell them."""

    tokens: jax.Array  # int32 [R]
    logprobs: jax.Array | None = None  # FP32 [R]: of these tokens
    top_tokens: jax.Array | None = None  # int32 [R, 20]: the likeliest first
    top_logprobs: jax.Array | None = None  # FP32 [R, 20]


def draw(
    variant: Variant,
    suppressed: Suppressed,
    logits: jax.Array,
    state: SamplerState,
    settings: Settings,
    mask: jax.Array | None = None,
) -> tuple[Drawn, SamplerState]:
    """Tokens after logits FP32 [R, V], and the state with them.

    mask uint32 [R, W]: bit v % 32 of word v // 32 is set if token v is allowed; it knows of what is
    suppressed.
    """
    raw = logits
    if variant.full:
        logits = _penalise(_add_biases(logits, state, settings), state, settings)
    if variant.masks:
        assert mask is not None
        logits = jnp.where(_unpack_mask(mask, logits.shape[1]), logits, -jnp.inf)
    else:
        logits = suppressed.apply(logits, settings.numbers)
    tokens = stateless_draw(variant, logits, settings)
    state = state._replace(last=state.last.at[settings.slots].set(tokens))
    if not variant.full:
        return Drawn(tokens), state
    state = state._replace(
        seen=state.seen.at[settings.slots, tokens].set(True),
        counts=state.counts.at[settings.slots, tokens].add(1),
    )
    return Drawn(tokens, *logprobs_of(raw, tokens)), state


def stateless_draw(variant: Variant, logits: jax.Array, settings: Settings) -> jax.Array:
    """Tokens int32 [R] after logits FP32 [R, V], whatever stood in the text before."""
    tokens = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    if variant.draws:
        is_greedy = (settings.column("temperature")[:, 0] == 0) | (settings.top_k == 1)
        tokens = jnp.where(is_greedy, tokens, _random(variant, logits, settings))
    return tokens


def _add_biases(logits: jax.Array, state: SamplerState, settings: Settings) -> jax.Array:
    rows = jnp.arange(logits.shape[0])[:, None]
    slots = settings.slots
    return logits.at[rows, state.bias_tokens[slots]].add(state.bias_values[slots])


def _penalise(logits: jax.Array, state: SamplerState, settings: Settings) -> jax.Array:
    """Repetition first, then the others as OpenAI describes them."""
    repetition = settings.column("repetition_penalty")
    logits = penalised(logits, state.seen[settings.slots], repetition)
    presence, frequency = map(settings.column, ("presence_penalty", "frequency_penalty"))
    return discouraged(logits, state.counts[settings.slots], presence, frequency)


def _random(variant: Variant, logits: jax.Array, settings: Settings) -> jax.Array:
    temperature = settings.column("temperature")
    logits = logits / jnp.where(temperature == 0, 1, temperature)
    floor = jnp.max(logits, axis=-1, keepdims=True) + jnp.log(settings.column("min_p"))
    if variant.full:
        floor = jnp.maximum(floor, _floor(logits, settings))
    logits = jnp.where(logits < floor, -jnp.inf, logits)
    # The likeliest after Gumbel noise is a draw from the distribution (Maddison et al., 2014).
    noise = gumbel(settings.seeds, settings.numbers, logits.shape[1])
    return jnp.argmax(logits + noise, axis=-1).astype(jnp.int32)


def _floor(logits: jax.Array, settings: Settings) -> jax.Array:
    """The smallest logit that top-k and top-p leave [R, 1]; equally likely ones at a cut stay."""
    vocab_size = logits.shape[1]
    descending, _ = jax.lax.top_k(logits, vocab_size)
    k = jnp.where(settings.top_k == 0, vocab_size, jnp.minimum(settings.top_k, vocab_size))
    floor = jnp.take_along_axis(descending, k[:, None] - 1, axis=-1)
    descending = jnp.where(descending < floor, -jnp.inf, descending)
    probabilities = jax.nn.softmax(descending, axis=-1)
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    kept = jnp.where(before < settings.column("top_p"), descending, jnp.inf)
    # Sums of FP32 may reach a top_p of 1 early.
    nucleus = jnp.where(settings.column("top_p") < 1, jnp.min(kept, -1, keepdims=True), -jnp.inf)
    return jnp.maximum(floor, nucleus)


def _unpack_mask(mask: jax.Array, vocab_size: int) -> jax.Array:
    bits = (mask[:, :, None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
    return bits.reshape(mask.shape[0], -1)[:, :vocab_size] == 1


def logprobs_of(logits: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The logarithms of the probabilities of tokens [R] after logits FP32 [R, V], FP32 [R], the
    likeliest tokens int32 [R, 20], and those of these, FP32 [R, 20]."""
    logprobs = jax.nn.log_softmax(logits, axis=-1)
    values, top = jax.lax.top_k(logprobs, min(MOST_LOGPROBS, logits.shape[1]))
    return jnp.take_along_axis(logprobs, tokens[:, None], axis=-1)[:, 0], top, values
