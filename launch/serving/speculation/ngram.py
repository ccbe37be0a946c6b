"""Prompt lookup: what followed the last few tokens when they stood in the text before (Saxena,
"Prompt Lookup Decoding", 2023)."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from launch.serving.sampling.draw import Settings
from launch.serving.scheduler.sequences import Sequence
from launch.serving.scheduler.steps import Step


class _Index:
    """Where the n-grams of one text end, the last place of each."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}
        self._known = 0  # tokens whose n-grams are in the index

    def follows(self, tokens: list[int], count: int) -> list[int]:
        """Up to `count` tokens that followed the longest end of the text that came before."""
        for end in range(max(self._known, 1), len(tokens)):
            for size in self._sizes:
                if size <= end:
                    self._ends[tuple(tokens[end - size : end])] = end
        self._known = max(self._known, len(tokens))
        for size in self._sizes:
            before = self._ends.get(tuple(tokens[-size:])) if size < len(tokens) else None
            if before is not None:
                return tokens[before : before + count]
        return []


class NgramProposer:
    """On the host, without a model."""

    reads_all_outputs = False

    def __init__(self, guesses: int, shortest: int, longest: int, texts: int) -> None:
        self.guesses = guesses
        self._sizes = shortest, longest
        self._texts = texts  # that are indexed at a time
        self._indices: OrderedDict[int, _Index] = OrderedDict()  # by number of the sequence

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
        index = self._indices.pop(sequence.number, None) or _Index(*self._sizes)
        self._indices[sequence.number] = index
        if len(self._indices) > self._texts:
            self._indices.popitem(last=False)
        return index.follows(sequence.tokens, self.guesses)
