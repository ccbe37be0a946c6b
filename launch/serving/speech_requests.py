"""Requests for a window of sound: which language it is in, and its transcript."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from launch.serving.requests import Request, SamplingParameters
from launch.serving.sampling.token_masks import as_bits
from launch.speech import Listener, Window
from models.whisper.instructions import opening


@dataclass(frozen=True)
class OneOf:
    """A grammar: the answer is one of these tokens."""

    tokens: Sequence[int]
    vocab_size: int

    def mask(self) -> np.ndarray:
        """The tokens that may come, as bits uint32 [ceil(V / 32)]."""
        allowed = np.zeros(self.vocab_size, bool)
        allowed[list(self.tokens)] = True
        return as_bits(allowed)

    def accept(self, token: int) -> bool:
        """False: no token may follow the one that was chosen."""
        return False


def opening_of(listener: Listener, window: Window) -> tuple[int | None, ...]:
    """What the text begins with; None stands where the language belongs that is to be detected."""
    return opening(listener.instructions, window.manner.language, window.manner.task)


def language_request(listener: Listener, window: Window, request_id: str) -> Request:
    """Asks for the language that most likely follows the start token."""
    instructions = listener.instructions
    return Request(
        request_id,
        [instructions.start_token],
        max_tokens=1,
        sampling=SamplingParameters(temperature=0),
        grammar=OneOf(list(instructions.languages.values()), listener.vocab_size),
        source=window.features,
    )


def text_request(
    listener: Listener,
    window: Window,
    request_id: str,
    *,
    language: int | None = None,
    max_tokens: int | None = None,
) -> Request:
    """Asks for the text, in the language with this token if that was to be detected; as long as it
    can be if there is no limit."""
    tokens = [language if token is None else token for token in opening_of(listener, window)]
    prompt = [token for token in tokens if token is not None]
    room = listener.context - len(prompt)
    return Request(
        request_id,
        prompt,
        max_tokens=room if max_tokens is None else min(max_tokens, room),
        sampling=SamplingParameters(temperature=window.manner.temperature, seed=window.manner.seed),
        stop_tokens=frozenset(listener.instructions.end_tokens),
        source=window.features,
    )
