"""The inputs and outputs of a speech model."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers

from launch.text import needed_tokenizer
from models.errors import ConfigError, GenerationError
from models.weights.fields import GENERATION_FILE
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


class WindowText(NamedTuple):
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
    vocab_size: int

    @property
    def tasks(self) -> Collection[str]:
        """The tasks of the checkpoint, such as "transcribe"."""
        return self.instructions.tasks

    def check(self, manner: Manner) -> None:
        """Raises GenerationError for a language or task that the model does not know."""
        if len(opening(self.instructions, manner.language, manner.task)) >= self.context:
            raise GenerationError("the model's context leaves no room for a transcript")

    def windows(self, sound: np.ndarray) -> Iterator[np.ndarray]:
        """Yields the features FP32 [F, M] of each window of sound [N]."""
        for begin in range(0, len(sound), self.settings.num_samples):
            yield log_mel(sound[begin : begin + self.settings.num_samples], self.settings)

    def window_text(self, opened: Sequence[int], made: Iterable[int]) -> WindowText:
        """The text that follows an opening, without the tokens that end it."""
        ends = self.instructions.end_tokens
        return WindowText([token for token in made if token not in ends], self._language(opened))

    def text(self, tokens: Sequence[int]) -> str:
        """The text of a window's tokens."""
        return str(self.tokenizer.decode(list(tokens))).strip()

    def _language(self, opened: Sequence[int]) -> str | None:
        names = {token: name for name, token in self.instructions.languages.items()}
        known = [names[token] for token in opened if token in names]
        return known[0].strip("<|>") if known else self.instructions.language


def open_listener(directory: Path, context: int, vocab_size: int) -> Listener:
    """The listener for a directory. Raises DataError or ModelsError for files that are missing or
    wrong."""
    instructions = read_instructions(directory)
    known = (*instructions.suppressed, *instructions.first_suppressed, instructions.start_token)
    outside = [token for token in known if not 0 <= token < vocab_size]
    if outside:
        raise ConfigError(
            f"{GENERATION_FILE} has the token IDs {outside}, but the vocabulary size is "
            f"{vocab_size}. It belongs to another checkpoint."
        )
    return Listener(
        read_spectrogram(directory),
        instructions,
        needed_tokenizer(directory),
        context,
        vocab_size,
    )
