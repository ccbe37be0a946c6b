"""Who guesses tokens.

Axis names: R rows of a bucket, T = 1 + K new tokens with K guesses, D model width.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import jax
import numpy as np

from launch.serving.runner.meter import Meter
from launch.serving.sampling.draw import Settings
from launch.serving.scheduler.sequences import Sequence
from launch.serving.scheduler.steps import Step


class Proposer(Protocol):
    """Guesses; wrong ones cost time and change nothing."""

    meter: Meter  # is told of the programs that run

    @property
    def guesses(self) -> int:
        """The number K of tokens that are guessed for a text at a time."""

    @property
    def reads_all_outputs(self) -> bool:
        """Whether it observes the outputs after every token, or after the last of each row."""

    def compile_all(self) -> Iterator[Any]:
        """Compiles what it needs; gives a key for each program."""

    def worth_guessing(self, sequence: Sequence) -> bool:
        """Whether there is a guess of what follows in a text."""

    def observe(self, step: Step, inputs: np.ndarray, last: jax.Array, outputs: jax.Array) -> None:
        """A step without guesses is on its way: its inputs, the tokens that were drawn before it,
        and the model's outputs [R, D], or [R, T, D] for one that reads them all."""

    def propose(self, step: Step, inputs: np.ndarray, settings: Settings) -> Any:
        """Guesses int32 [R, K] for a step, of which the first token stands in the inputs; the
        settings are of the token after that."""

    def verified(
        self, step: Step, inputs: np.ndarray, guesses: Any, tokens: jax.Array, outputs: jax.Array
    ) -> None:
        """What the model drew in their places, int32 [R · T], and its outputs [R, T, D]."""


def accepted(step: Step, guesses: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """The tokens [n, T] that a step drew with guesses [n, K], -1 behind the first wrong guess."""
    index = np.arange(guesses.shape[1])
    right = (guesses == tokens[:, :-1]) & (index < step.counts[:, None] - 1)
    count = np.cumprod(right, axis=1).sum(axis=1)
    return np.where(np.arange(tokens.shape[1]) <= count[:, None], tokens, -1)
