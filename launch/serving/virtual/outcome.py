"""What came of a run on the simulated clock."""

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from launch.serving.scheduler.steps import Counters
from launch.serving.virtual.latencies import Latencies
from launch.serving.virtual.one_copy import Copy
from launch.serving.virtual.traffic import Arrival


@dataclass(frozen=True)
class Outcome:
    """What clients saw, in seconds of the device. Arrays have an entry per request."""

    arrived: np.ndarray
    first_token: np.ndarray
    finished: np.ndarray
    tokens: np.ndarray  # of the answer
    between_tokens: Latencies
    steps: int
    busy: float  # seconds in which the device ran; of several copies of the model, the mean
    counters: Counters

    @classmethod
    def of(
        cls,
        engines: Items[Copy],
        arrivals: Items[Arrival],
        first_token: np.ndarray,
        finished: np.ndarray,
        between_tokens: Latencies,
    ) -> "Outcome":
        """What these copies of the model have done, now that they are idle."""
        return cls(
            np.array([arrival.seconds for arrival in arrivals]),
            first_token,
            finished,
            np.array([arrival.max_tokens for arrival in arrivals]),
            between_tokens,
            sum(engine.steps for engine in engines),
            sum(engine.busy for engine in engines) / len(engines),
            Counters.total([engine.scheduler.counters for engine in engines]),
        )

    @property
    def duration(self) -> float:
        """The time from the first arrival to the last token."""
        return float(self.finished.max() - self.arrived.min())

    @property
    def to_first(self) -> np.ndarray:
        """Times to the first token."""
        return self.first_token - self.arrived

    @property
    def per_token(self) -> np.ndarray:
        """Mean times per token after the first; NaN for answers of one."""
        rest = np.where(self.tokens > 1, self.tokens - 1, np.nan)
        return (self.finished - self.first_token) / rest
