"""Speech to text: a speech model and its files."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from launch import draws
from launch.speech import Heard, Listener, Manner, open_listener
from models.pretrained import Pretrained, describe
from models.whisper.transcription import continue_prompts, prompts


@dataclass(frozen=True)
class Transcriber:
    """A speech model and its files."""

    model: Pretrained
    listener: Listener

    @classmethod
    def open(cls, directory: Path, load: Callable[[], Pretrained]) -> "Transcriber":
        """The transcriber of a directory. Raises DataError or ModelsError for files that are
        missing or wrong."""
        listener = open_listener(directory, describe(directory).config.max_seq_len)
        return cls(load(), listener)

    def hear(
        self, features: np.ndarray, manner: Manner, max_new_tokens: int | None = None
    ) -> list[Heard]:
        """The transcripts of windows [B, F, M]."""
        graph, parameters, instructions = (
            self.model.graph,
            self.model.parameters,
            self.listener.instructions,
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
            Heard([token for token in row if token not in ends], self.listener.language(opened))
            for row, opened in zip(made.tolist(), prompt.tolist(), strict=True)
        ]
