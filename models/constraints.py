"""Constraints on the next token, however it is chosen: plain functions of the logits and the text.

They are applied in the order of transformers.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from models.errors import GenerationError


class Ending(NamedTuple):
    """When rows end, and what fills them afterwards."""

    stop_tokens: tuple[int, ...] = ()  # a row ends after any of these
    pad_token: int = 0  # what a row that has ended is filled with


@dataclass(frozen=True)
class Constraints:
    """Constraints on all new tokens of a text. Raises GenerationError if a field is out of
    range."""

    # Divides positive logits of tokens that the text holds, and multiplies negative ones.
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0  # so many tokens in a row stand in a text once; 0 = any
    min_new_tokens: int = 0  # no row ends before it has so many
    forced_first: int | None = None  # the first new token
    forced_last: tuple[int, ...] = ()  # one of these is the last that there is room for
    suppressed: tuple[int, ...] = ()  # never made
    first_suppressed: tuple[int, ...] = ()  # not made as the first new token
    # Subtracted from the logits of tokens that were made: once, and for each time.
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    def __post_init__(self) -> None:
        if not self.repetition_penalty > 0:
            raise GenerationError(
                f"repetition_penalty={self.repetition_penalty} is not positive; use 1 for none"
            )
        for name in ("no_repeat_ngram", "min_new_tokens"):
            if getattr(self, name) < 0:
                raise GenerationError(f"{name}={getattr(self, name)} is negative; use 0 for none")

    @property
    def look_back(self) -> bool:
        """Whether they depend on the text so far."""
        return self.repetition_penalty != 1 or self.no_repeat_ngram > 0 or self.discourages

    @property
    def discourages(self) -> bool:
        """Whether they depend on how often tokens were generated."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0


class Text(NamedTuple):
    """The text of each row so far: the tokens in slots begin … end - 1."""

    tokens: jax.Array  # int32 [B, S]
    begin: jax.Array  # int32 [B]
    end: ArrayLike

    def is_text(self) -> jax.Array:
        """Which slots hold text, bool [B, S]."""
        slots = jnp.arange(self.tokens.shape[1])
        return (slots >= self.begin[:, None]) & (slots < self.end)


class Number(NamedTuple):
    """The index of a new token in the generated text."""

    made: ArrayLike  # new tokens before it
    most: ArrayLike  # that there can be


def constrained(
    logits: jax.Array, rules: Constraints, text: Text | None, number: Number, ending: Ending
) -> jax.Array:
    """Constrained logits [B, V], FP32; -inf marks an impossible token. The text may be None for
    constraints that do not depend on it."""
    logits = logits.astype(jnp.float32)
    if text is not None and rules.repetition_penalty != 1:
        logits = penalised(logits, held(text, logits.shape[1]), rules.repetition_penalty)
    if text is not None and rules.discourages:
        counts = made_counts(text, number, logits.shape[1])
        logits = discouraged(logits, counts, rules.presence_penalty, rules.frequency_penalty)
    if text is not None and rules.no_repeat_ngram:
        logits = without_repeats(logits, text, rules.no_repeat_ngram)
    is_first = jnp.asarray(number.made) == 0
    if rules.min_new_tokens:
        is_early = jnp.asarray(number.made) < rules.min_new_tokens
        logits = without(logits, ending.stop_tokens, is_early)
    if rules.forced_first is not None:
        logits = forced(logits, (rules.forced_first,), is_first)
    logits = forced(logits, rules.forced_last, jnp.asarray(number.made) == number.most - 1)
    logits = without(logits, rules.suppressed, True)
    return without(logits, rules.first_suppressed, is_first)


def held(text: Text, vocab_size: int) -> jax.Array:
    """Which tokens occur in each row, bool [B, V]."""
    count = len(text.tokens)
    rows = jnp.arange(count)[:, None]
    return jnp.zeros((count, vocab_size), bool).at[rows, text.tokens].max(text.is_text())


def penalised(logits: jax.Array, seen: jax.Array, penalty: ArrayLike) -> jax.Array:
    """Repetition penalty (Keskar et al., "CTRL", 2019): makes tokens that occur in the text, bool
    [B, V], less likely.

    `penalty` is one number for all rows, or one per row, [B, 1].
    """
    return jnp.where(seen, jnp.where(logits < 0, logits * penalty, logits / penalty), logits)


def made_counts(text: Text, number: Number, vocab_size: int) -> jax.Array:
    """How often each token was generated in a row, int32 [B, V]."""
    count, slots = text.tokens.shape
    is_new = text.is_text() & (jnp.arange(slots) >= text.end - jnp.asarray(number.made))
    rows = jnp.arange(count)[:, None]
    zeros = jnp.zeros((count, vocab_size), jnp.int32)
    return zeros.at[rows, text.tokens].add(is_new.astype(jnp.int32))


def discouraged(
    logits: jax.Array, counts: jax.Array, presence: ArrayLike, frequency: ArrayLike
) -> jax.Array:
    """OpenAI's penalties for tokens that were generated so often, [B, V]: one for all rows, or one
    per row, [B, 1]."""
    return logits - frequency * counts - presence * (counts > 0)


def without_repeats(logits: jax.Array, text: Text, length: int) -> jax.Array:
    """Logits under which no n-gram of this length occurs twice (Paulus et al., "A Deep Reinforced
    Model for Abstractive Summarization", 2017)."""
    slots = text.tokens.shape[1] - length + 1  # where as many can begin
    if slots < 1:
        return logits
    begins = jnp.arange(slots)
    last = jnp.maximum(text.end - length + 1, 0) + jnp.arange(length - 1)
    suffix = text.tokens[:, last]  # [B, length - 1], what the next token follows
    same = jnp.ones((len(logits), slots), bool)
    for place in range(length - 1):
        here = jax.lax.slice_in_dim(text.tokens, place, place + slots, axis=1)
        same &= here == suffix[:, place, None]
    is_text = (begins >= text.begin[:, None]) & (begins + length <= text.end)
    follows = jax.lax.slice_in_dim(text.tokens, length - 1, length - 1 + slots, axis=1)
    rows = jnp.arange(len(logits))[:, None]
    repeats = jnp.zeros(logits.shape, bool).at[rows, follows].max(same & is_text)
    return jnp.where(repeats, -jnp.inf, logits)


def without(logits: jax.Array, tokens: tuple[int, ...], apply: ArrayLike) -> jax.Array:
    """The logits with these tokens made impossible, if `apply` holds."""
    if not tokens:
        return logits
    return jnp.where(_among(logits, tokens) & apply, -jnp.inf, logits)


def forced(logits: jax.Array, tokens: tuple[int, ...], apply: ArrayLike) -> jax.Array:
    """The logits with only these tokens possible, and equally likely, if `apply` holds."""
    if not tokens:
        return logits
    only = jnp.where(_among(logits, tokens), 0.0, -jnp.inf)
    return jnp.where(apply, only, logits)


def _among(logits: jax.Array, tokens: tuple[int, ...]) -> jax.Array:
    return jnp.zeros(logits.shape[-1], bool).at[jnp.array(tokens)].set(True)
