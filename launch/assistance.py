"""Who guesses tokens for a language model that generates text."""

from typing import Any, NamedTuple

import numpy as np

from models.assisted import Assistant, DraftModel, PromptLookup, generate_assisted
from models.pretrained import Pretrained


class Assistance(NamedTuple):
    """How many tokens are guessed at a time, by a smaller model or, without one, by what the text
    itself says."""

    guesses: int
    draft: Pretrained | None = None

    def generate(
        self, graph: Any, parameters: Any, prompt: np.ndarray, *, max_new_tokens: int, **others: Any
    ) -> np.ndarray:
        """The tokens after a prompt, as `models.assisted.generate_assisted` gives them."""
        return generate_assisted(
            graph,
            parameters,
            prompt,
            self._assistant(prompt.shape[1] + max_new_tokens),
            guesses=self.guesses,
            max_new_tokens=max_new_tokens,
            **others,
        )

    def _assistant(self, length: int) -> Assistant:
        """The assistant for a text of at most that length."""
        if self.draft is None:
            return PromptLookup()
        config = self.draft.config
        context = min([length, config.max_seq_len, *config.boundaries])
        return DraftModel(self.draft.graph, self.draft.parameters, context=context)
