"""Prompt lookup without a model: see `models.lookup`."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from launch.serving.runner.meter import Meter
from launch.serving.sampling.draw import Settings
from launch.serving.scheduler.sequences import Sequence
from launch.serving.scheduler.steps import Step
from models.lookup import Lookup


class NgramProposer:
    """A proposer that looks guesses up in the text, on the host and without a model."""

    reads_all_outputs = False

    def __init__(self, guesses: int, shortest: int, longest: int, texts: int) -> None:
        self.guesses, self.meter = guesses, Meter()
        self._sizes = shortest, longest
        self._texts = texts  # that are indexed at a time
        self._indices: OrderedDict[int, Lookup] = OrderedDict()  # by number of the sequence

    def compile_all(self) -> Iterator[Any]:
        """Nothing runs on the device."""
        return iter(())

    def worth_guessing(self, sequence: Sequence) -> bool:
        """Whether the end of the text came before."""
        return bool(self._guess(sequence))

    def observe(self, step: Step, inputs: np.ndarray, last: jax.Array, outputs: jax.Array) -> None:
        """The host knows the texts."""

    def propose(self, step: Step, inputs: np.ndarray, settings: Settings) -> np.ndarray:
        """Guesses, and zeros where there are none."""
        guesses = np.zeros((step.bucket.rows, self.guesses), np.int32)
        for row, sequence in enumerate(step.sequences):
            guess = self._guess(sequence)
            guesses[row, : len(guess)] = guess
        return guesses

    def verified(
        self, step: Step, inputs: np.ndarray, guesses: Any, tokens: jax.Array, outputs: jax.Array
    ) -> None:
        """The host knows the texts."""

    def _guess(self, sequence: Sequence) -> list[int]:
        index = self._indices.pop(sequence.number, None) or Lookup(*self._sizes)
        self._indices[sequence.number] = index
        if len(self._indices) > self._texts:
            self._indices.popitem(last=False)
        return index.follows(sequence.tokens, self.guesses)
