"""Speculative decoding on the simulated clock: guesses are right with a given probability."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from launch.serving.scheduler.buckets import Bucket
from launch.serving.scheduler.steps import Step
from launch.serving.speculation.proposer import accepted

_RIGHT, _WRONG = 0, 1  # tokens: the model always draws the first


@dataclass(frozen=True)
class Guessing:
    """How guesses fare, and what they take."""

    acceptance_rate: float  # probability that a guess is right if all before it are
    seconds: Callable[[Bucket], float]  # of a step that checks guesses, with that of making them
    seed: int = 0

    def generator(self) -> np.random.Generator:
        """A random generator that draws the same for every copy of the model."""
        return np.random.default_rng(self.seed)

    def drawn(self, step: Step, generator: np.random.Generator) -> np.ndarray:
        """Tokens [n, 1 + guesses] as a runner gives them: -1 behind the first wrong guess."""
        shape = len(step.slots), step.bucket.tokens
        is_right = generator.random((shape[0], shape[1] - 1)) < self.acceptance_rate
        return accepted(step, np.where(is_right, _RIGHT, _WRONG), np.full(shape, _RIGHT))
