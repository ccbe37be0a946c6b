"""Speech to text: a model of speech, and what belongs to it."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers

from launch import draws
from launch.speech import Heard, Manner
from launch.text import needed_tokenizer
from models.errors import GenerationError
from models.pretrained import Pretrained
from models.whisper.features import Spectrogram, log_mel, read_spectrogram
from models.whisper.transcription import (
    Instructions,
    continue_prompts,
    opening,
    prompts,
    read_instructions,
)


@dataclass(frozen=True)
class Transcriber:
    """A model and its files."""

    model: Pretrained
    settings: Spectrogram
    instructions: Instructions
    tokenizer: tokenizers.Tokenizer

    @classmethod
    def open(cls, directory: Path, load: Callable[[], Pretrained]) -> "Transcriber":
        """Of a directory. Raises DataError or ModelsError for files that are missing or wrong."""
        settings, instructions = read_spectrogram(directory), read_instructions(directory)
        tokenizer = needed_tokenizer(directory)
        return cls(load(), settings, instructions, tokenizer)

    @property
    def room(self) -> int:
        """The longest text of a window, in tokens."""
        config = self.model.config
        return int(config.max_seq_len) - len(opening(self.instructions))

    @property
    def tasks(self) -> Collection[str]:
        """Those of the checkpoint, such as "transcribe"."""
        return self.instructions.tasks

    def check(self, manner: Manner) -> None:
        """Raises GenerationError for a language or task that the model does not know."""
        if len(opening(self.instructions, manner.language, manner.task)) >= self.room:
            raise GenerationError("the model's context has no room for a text")

    def windows(self, sound: np.ndarray) -> Iterator[np.ndarray]:
        """Features FP32 [F, M] of one window after the other of sound [N]."""
        for begin in range(0, len(sound), self.settings.num_samples):
            yield log_mel(sound[begin : begin + self.settings.num_samples], self.settings)

    def hear(
        self, features: np.ndarray, manner: Manner, max_new_tokens: int | None = None
    ) -> list[Heard]:
        """The texts of windows [B, F, M]."""
        graph, parameters, instructions = (
            self.model.graph,
            self.model.parameters,
            self.instructions,
        )
        prompt = prompts(
            graph, parameters, features, instructions, language=manner.language, task=manner.task
        )
        config = self.model.config
        room = config.max_seq_len - prompt.shape[1]
        made = continue_prompts(
            graph,
            parameters,
            features,
            prompt,
            instructions,
            config,
            max_new_tokens=room if max_new_tokens is None else min(max_new_tokens, room),
            temperature=manner.temperature,
            key=draws.key(manner.seed),
        )
        ends = {*instructions.end_tokens, instructions.pad_token}
        return [
            Heard([token for token in row if token not in ends], self._language(opened))
            for row, opened in zip(made.tolist(), prompt.tolist(), strict=True)
        ]

    def text(self, tokens: Sequence[int]) -> str:
        """Of a window."""
        return str(self.tokenizer.decode(list(tokens))).strip()

    def _language(self, opened: Sequence[int]) -> str | None:
        names = {token: name for name, token in self.instructions.languages.items()}
        known = [names[token] for token in opened if token in names]
        return known[0].strip("<|>") if known else self.instructions.language
