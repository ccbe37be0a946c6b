"""The inputs and outputs of a speech model."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers

from launch.text import needed_tokenizer
from models.errors import GenerationError
from models.whisper.features import Spectrogram, log_mel, read_spectrogram
from models.whisper.instructions import Instructions, opening, read_instructions


class Manner(NamedTuple):
    """How to transcribe a window."""

    language: str | None = None  # such as "en"; None = as the checkpoint says, or detected
    task: str | None = None  # "transcribe" or "translate"
    temperature: float = 0.0
    seed: int = 0


class Window(NamedTuple):
    """A piece of sound of the length that the model takes at once."""

    features: np.ndarray  # FP32 [F, M]
    manner: Manner


class Heard(NamedTuple):
    """The transcript of one window."""

    tokens: Sequence[int]
    language: str | None  # such as "en"; None = the checkpoint knows but one


@dataclass(frozen=True)
class Listener:
    """What surrounds a speech model: it turns sound into features, and tokens into text."""

    settings: Spectrogram
    instructions: Instructions
    tokenizer: tokenizers.Tokenizer
    context: int  # longest text with what opens it, in tokens

    @property
    def room(self) -> int:
        """The longest transcript of a window, in tokens."""
        return self.context - len(opening(self.instructions))

    @property
    def tasks(self) -> Collection[str]:
        """The tasks of the checkpoint, such as "transcribe"."""
        return self.instructions.tasks

    def check(self, manner: Manner) -> None:
        """Raises GenerationError for a language or task that the model does not know."""
        if len(opening(self.instructions, manner.language, manner.task)) >= self.room:
            raise GenerationError("the model's context leaves no room for a transcript")

    def windows(self, sound: np.ndarray) -> Iterator[np.ndarray]:
        """Yields the features FP32 [F, M] of each window of sound [N]."""
        for begin in range(0, len(sound), self.settings.num_samples):
            yield log_mel(sound[begin : begin + self.settings.num_samples], self.settings)

    def text(self, tokens: Sequence[int]) -> str:
        """The text of a window's tokens."""
        return str(self.tokenizer.decode(list(tokens))).strip()

    def language(self, opened: Sequence[int]) -> str | None:
        """The language of a text that begins with these tokens, such as "en"."""
        names = {token: name for name, token in self.instructions.languages.items()}
        known = [names[token] for token in opened if token in names]
        return known[0].strip("<|>") if known else self.instructions.language


def open_listener(directory: Path, context: int) -> Listener:
    """The listener for a directory. Raises DataError or ModelsError for files that are missing or
    wrong."""
    return Listener(
        read_spectrogram(directory),
        read_instructions(directory),
        needed_tokenizer(directory),
        context,
    )
