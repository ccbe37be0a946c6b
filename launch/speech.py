"""What a model of speech is given, and what it makes of it."""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from models.whisper.features import Spectrogram


class Manner(NamedTuple):
    """How a window is to be heard."""

    language: str | None = None  # such as "en"; None = as the checkpoint says, or detected
    task: str | None = None  # "transcribe" or "translate"
    temperature: float = 0.0
    seed: int = 0


class Window(NamedTuple):
    """A piece of sound, of the length that the model hears at once."""

    features: np.ndarray  # FP32 [F, M]
    manner: Manner


class Heard(NamedTuple):
    """The text of one window."""

    tokens: Sequence[int]
    language: str | None  # such as "en"; None = the checkpoint knows but one


class Listener(Protocol):
    """What a program needs to know of a model of speech beside what it hears."""

    @property
    def settings(self) -> Spectrogram:
        """How sound becomes features."""

    @property
    def tasks(self) -> Collection[str]:
        """Those of the checkpoint, such as "transcribe"."""

    def check(self, manner: Manner) -> None:
        """Raises GenerationError for a language or task that the model does not know."""

    def windows(self, sound: np.ndarray) -> Iterator[np.ndarray]:
        """Features FP32 [F, M] of one window after the other of sound [N]."""

    def text(self, tokens: Sequence[int]) -> str:
        """Of a window."""
