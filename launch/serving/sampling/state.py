"""What the device remembers of the texts in the slots.

Axis names: S slots, and one more for padding; V vocabulary; K biases; L longest text.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from launch.serving.requests import MOST_BIASES


class SamplerState(NamedTuple):
    """The sampler's state on the device: an entry per slot, and one more for rows of padding."""

    last: jax.Array  # int32 [S + 1]: the token that was drawn last
    seen: jax.Array  # bool [S + 1, V]: the token stands in prompt or answer
    counts: jax.Array  # int32 [S + 1, V]: how often it stands in the answer
    bias_tokens: jax.Array  # int32 [S + 1, K]
    bias_values: jax.Array  # FP32 [S + 1, K]

    @classmethod
    def empty(cls, slots: int, vocab_size: int) -> "SamplerState":
        """The state of texts without a token."""
        return cls(
            last=jnp.zeros(slots + 1, jnp.int32),
            seen=jnp.zeros((slots + 1, vocab_size), bool),
            counts=jnp.zeros((slots + 1, vocab_size), jnp.int32),
            bias_tokens=jnp.zeros((slots + 1, MOST_BIASES), jnp.int32),
            bias_values=jnp.zeros((slots + 1, MOST_BIASES), jnp.float32),
        )


def enter(
    state: SamplerState,
    place: jax.Array,
    text: jax.Array,
    bias_tokens: jax.Array,
    bias_values: jax.Array,
) -> SamplerState:
    """The state after a text has got a slot.

    place int32 [3]: the slot, the length of the prompt and of the whole text; text int32 [L],
    padded at its end; biases [K], padded with values of zero.
    """
    slot, prompt_length, length = place
    index = jnp.arange(text.shape[0])
    is_text = (index < length).astype(jnp.int32)
    is_answer = is_text * (index >= prompt_length)
    zeros = jnp.zeros(state.seen.shape[1], jnp.int32)
    return SamplerState(
        last=state.last,
        seen=state.seen.at[slot].set(zeros.at[text].add(is_text) > 0),
        counts=state.counts.at[slot].set(zeros.at[text].add(is_answer)),
        bias_tokens=state.bias_tokens.at[slot].set(bias_tokens),
        bias_values=state.bias_values.at[slot].set(bias_values),
    )
