"""Tokens that no answer of a model may hold, or begin with."""

from typing import NamedTuple

import jax
import numpy as np

from launch.serving.sampling.token_masks import as_bits
from models.constraints import without


class Suppressed(NamedTuple):
    """Tokens that a model's answers never hold: requests have no say in them. A grammar has: what
    it allows may follow in its answer, whatever is suppressed in others."""

    always: tuple[int, ...] = ()
    first: tuple[int, ...] = ()  # as the first token of an answer

    def apply(self, logits: jax.Array, numbers: jax.Array) -> jax.Array:
        """The logits [R, V] of what may follow answers of so many tokens [R]."""
        logits = without(logits, self.always, True)
        return without(logits, self.first, (numbers == 0)[:, None])

    def masks(self, vocab_size: int) -> np.ndarray:
        """The tokens that may go on with an answer, and those that may begin one, as bits, the
        lowest first: uint32 [2, ceil(V / 32)]."""
        allowed = np.ones((2, vocab_size), bool)
        allowed[:, list(self.always)] = False
        allowed[1, list(self.first)] = False
        return as_bits(allowed)


NONE_SUPPRESSED = Suppressed()
