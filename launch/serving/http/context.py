"""A model, its requests and their answers, as every endpoint works with them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from launch.chat_template import ChatTemplate
from launch.serving.answers import Piece, TokenLogprob, Writing, text_of_token
from launch.serving.http.bodies import Body
from launch.serving.http.budgets import Budgets
from launch.serving.http.errors import no_such_model
from launch.serving.http.metrics import Metrics, Timer
from launch.serving.http.pictures import Pictures
from launch.serving.http.service import Replies, Service, Watch, follow
from launch.serving.http.store import Store
from launch.serving.http.tracing import traced_answers
from launch.serving.parsers import NO_PARSER, Parser
from launch.serving.requests import Adapter, Logprobs, Request

MOST_RESPONSE_BYTES = 64 << 20  # of all responses that are kept


class Choice(NamedTuple):
    """The model, or one of its adapters."""

    name: str
    adapter: Adapter | None


@dataclass
class Reply:
    """The answer to one request."""

    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    scores: Sequence[Logprobs | None] = ()  # of the prompt's tokens
    finished: str | None = None
    stop: str | None = None  # the stop string that has ended it

    def add(self, piece: Piece) -> None:
        """Appends a piece."""
        self.stop = piece.stop
        self.text += piece.text
        self.logprobs.extend(piece.logprobs)
        self.tokens.extend(piece.tokens)
        self.scores = piece.scores or self.scores
        self.finished = piece.finished or self.finished


@dataclass
class Usage:
    """The numbers of tokens that one body takes."""

    prompt: int = 0
    answer: int = 0
    cached: int = 0
    to_first: float | None = None  # seconds on a simulated device
    to_last: float = 0.0

    def add(self, piece: Piece) -> None:
        """Counts a piece of an answer."""
        self.answer += len(piece.tokens)
        self.cached = max(self.cached, piece.cached_tokens)
        if piece.times is not None:
            arrived, first, ended = piece.times
            if self.to_first is None or first - arrived < self.to_first:
                self.to_first = first - arrived
            self.to_last = max(self.to_last, ended - arrived)

    def json(self) -> dict[str, object]:
        """OpenAI's object; with the device's seconds, if they are simulated."""
        seconds = {"first_token": self.to_first, "whole": self.to_last}
        return {
            **({} if self.to_first is None else {"device_seconds": seconds}),
            "prompt_tokens": self.prompt,
            "completion_tokens": self.answer,
            "total_tokens": self.prompt + self.answer,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


class Conversation(NamedTuple):
    """A response that is kept, and the messages of a chat that it ends."""

    response: Mapping[str, Any]
    messages: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Served:
    """A model behind the API."""

    name: str
    service: Service
    metrics: Metrics
    template: ChatTemplate
    vocab_size: int
    stop_tokens: Sequence[int]
    created: int  # Unix time of the start
    opening: Sequence[int] = ()  # of every answer, if the prompt is a source that an encoder reads
    pictures: Pictures | None = None  # what the model sees in conversations
    budgets: Budgets = field(default_factory=lambda: Budgets(None))
    tool_parser: Parser = NO_PARSER
    reasoning_parser: Parser = NO_PARSER
    responses: "Store[Conversation]" = field(
        default_factory=lambda: Store("response", MOST_RESPONSE_BYTES)
    )

    @property
    def longest(self) -> int:
        """The longest text, in tokens."""
        return self.service.limits.longest

    def choose(self, body: Body) -> Choice:
        """Returns the model or adapter that the body names, by default the model. Raises HTTPError
        for a name that there is not."""
        name = body.text("model", self.name)
        if name == self.name:
            return Choice(name, None)
        registry = self.service.registry
        adapter = registry.find(name)
        if adapter is None:
            raise no_such_model(name, [self.name, *(known.name for known in registry.adapters)])
        return Choice(name, adapter)

    def describe_scores(
        self, request: Request, scores: Sequence[Logprobs | None], most: int
    ) -> list[dict[int, Any] | None]:
        """What the model says of a prompt's tokens, as vLLM has it: by the numbers of each one and
        of the `most` likeliest in its place. None for the first, before which nothing stands."""
        told: list[dict[int, Any] | None] = []
        for token, entry in zip(request.prompt, scores, strict=False):
            if entry is None:
                told.append(None)
                continue
            top = zip(entry.tokens[:most], entry.values, range(1, most + 1), strict=False)
            ranked = [*top, (token, entry.chosen, entry.rank)]
            told.append(
                {number: self._ranked(number, value, rank) for number, value, rank in ranked}
            )
        return told

    def _ranked(self, token: int, logprob: float, rank: int) -> dict[str, Any]:
        text = text_of_token(self.service.tokenizer, token)
        return {"logprob": logprob, "rank": rank, "decoded_token": text}

    @contextmanager
    def replies(self, requests: Sequence[Request], writing: Writing) -> Iterator[Replies]:
        """The answers to requests; measured. Raises what entering `Replies` raises, and
        CrowdedError if the client has had its tokens."""
        client, budgets = requests[0].client, self.budgets
        budgets.check(client)
        budgets.spend(client, sum(request.tokens_read for request in requests))
        with (
            measured(self.metrics, requests, partial(budgets.spend, client)) as watch,
            Replies(self.service, requests, writing, watch) as replies,
        ):
            yield replies

    async def whole_replies(
        self, requests: Sequence[Request], writing: Writing, usage: Usage
    ) -> list[Reply]:
        """The complete answers to requests, whose tokens count towards `usage`. Raises what
        `replies` raises."""
        answers = [Reply() for _ in requests]

        def add(index: int, piece: Piece) -> None:
            answers[index].add(piece)
            usage.add(piece)

        with self.replies(requests, writing) as replies:
            await follow(replies, add)
        return answers


@contextmanager
def measured(
    metrics: Metrics,
    requests: Sequence[Request],
    spend: Callable[[int], None] = lambda tokens: None,
) -> Iterator[list[Watch]]:
    """Yields, for each request, who must be told of its pieces until the block ends; `spend` is
    told of the tokens that are written."""
    timers = [metrics.begin(request) for request in requests]

    def watch(timer: Timer, piece: Piece) -> None:
        timer.piece(piece)
        spend(len(piece.tokens))

    with traced_answers(requests, timers):
        try:
            yield [partial(watch, timer) for timer in timers]
        finally:
            for timer in timers:
                timer.close()
