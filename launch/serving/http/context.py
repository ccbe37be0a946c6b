"""What every endpoint works with."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launch.chat_template import ChatTemplate
from launch.serving.answers import Piece
from launch.serving.grammar import Grammars
from launch.serving.http.bodies import Body
from launch.serving.http.errors import INTERNAL, HTTPError, no_such_model
from launch.serving.http.metrics import Metrics
from launch.serving.requests import Request
from launch.serving.service import Service


@dataclass(frozen=True)
class Served:
    """A model behind the API."""

    name: str
    service: Service
    metrics: Metrics
    template: ChatTemplate
    grammars: Grammars
    vocab_size: int
    stop_tokens: Sequence[int]
    created: int  # Unix time of the start
    describe: Mapping[str, Any] = field(default_factory=dict)  # facts for people

    @property
    def longest(self) -> int:
        """The longest text, in tokens."""
        return self.service.engine.limits.longest

    def check_model(self, body: Body) -> None:
        """Raises HTTPError if the body asks for another model; none at all is this one."""
        self.check_name(body.text("model", self.name))

    def check_name(self, name: str) -> None:
        """Raises HTTPError for another name."""
        if name != self.name:
            raise no_such_model(name, [self.name])

    async def pieces(
        self, requests: Sequence[Request], stops: Sequence[str]
    ) -> AsyncGenerator[tuple[int, Piece], None]:
        """(index of the request, piece) as they come; measured. Raises HTTPError if the device
        fails."""
        timers = [self.metrics.begin(len(request.prompt)) for request in requests]
        answers = self.service.answer(requests, stops)
        try:
            async for index, piece in answers:
                timers[index].piece(piece)
                if piece.finished == "error":
                    raise HTTPError(INTERNAL, f"the answer could not be completed: {piece.error}")
                yield index, piece
        finally:
            for timer in timers:
                timer.close()
            await answers.aclose()


@dataclass
class Usage:
    """Tokens of one body."""

    prompt: int = 0
    answer: int = 0
    cached: int = 0

    def json(self) -> dict[str, Any]:
        """OpenAI's object."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.answer,
            "total_tokens": self.prompt + self.answer,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }
