"""`/v1/completions`: a text goes on."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from launch.serving.answers import Piece, TokenLogprob
from launch.serving.errors import RequestError
from launch.serving.http.bodies import Body
from launch.serving.http.context import Choice, Served, Usage
from launch.serving.http.events import Chunks, EventSource
from launch.serving.http.parameters import Wanted, read_wanted
from launch.serving.http.site import Stream
from launch.serving.http.structure import read_structure
from launch.serving.requests import MOST_LOGPROBS, Request

DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True)
class Completion:
    """The parsed body of a request for a completion."""

    served: Served
    chosen: Choice
    id: str
    wanted: Wanted
    requests: Sequence[Request]
    echoes: Sequence[str]  # text before each answer

    @classmethod
    def read(cls, served: Served, body: Body) -> "Completion":
        """Raises RequestError or HTTPError for a body that cannot be answered."""
        choice = served.choose(body)
        logprobs = body.integer("logprobs")
        if logprobs is not None and not 0 <= logprobs <= MOST_LOGPROBS:
            raise body.fail("logprobs", f"a number from 0 to {MOST_LOGPROBS}")
        echo = body.flag("echo")
        if echo and served.opening:
            raise RequestError("the answer does not continue the prompt: leave echo out", "echo")
        max_tokens = body.integer("max_tokens", DEFAULT_MAX_TOKENS)
        prompt_only = echo and max_tokens == 0
        wanted = read_wanted(
            served, body, max_tokens=1 if prompt_only else max_tokens, logprobs=logprobs
        )
        marks = body.flag("add_special_tokens", True)
        prompts = [
            wanted.shorten(_tokens(served, prompt, marks), served.longest)
            for prompt in _prompts(body)
        ]
        texts = [_text(served, tokens) if echo else "" for tokens in prompts]
        request_id = f"cmpl-{served.service.new_id()}"
        requests = wanted.requests(
            served,
            choice,
            [served.opening or tokens for tokens in prompts],
            read_structure(served.service.tokenizer, body),
        )
        if echo:
            wanted = replace(wanted, writing=wanted.writing._replace(echo=True))
            counts = [count for count in (logprobs, wanted.prompt_logprobs) if count is not None]
            most = max(counts, default=None)
            requests = [
                replace(request, prompt_logprobs=most, prompt_only=prompt_only)
                for request in requests
            ]
        if served.opening:
            requests = [
                replace(request, source=prompts[index // wanted.n])
                for index, request in enumerate(requests)
            ]
        texts = [text for text in texts for _ in range(wanted.n)]
        return cls(served, choice, request_id, wanted, requests, texts)

    async def whole(self) -> dict[str, Any]:
        """The completion as one JSON object."""
        usage = self.usage()
        replies = await self.served.whole_replies(self.requests, self.wanted.writing, usage)
        choices = [
            {
                **self.choice(index, echo + reply.text, reply.logprobs, reply.finished, 0),
                **self.wanted.describe_prompt(self.served, self.requests[index], reply.scores),
                **self.wanted.describe_ids(reply.tokens),
            }
            for index, (echo, reply) in enumerate(zip(self.echoes, replies, strict=True))
        ]
        return {**self.head(), "choices": choices, "usage": usage.json()}

    def stream(self) -> Stream | None:
        """The answer piece by piece, if that was asked for."""
        if not self.wanted.stream:
            return None
        return EventSource(self.served.replies(self.requests, self.wanted.writing), _Events(self))

    def usage(self) -> Usage:
        """Counts what has been read, before anything is answered."""
        step = self.wanted.n
        return Usage(prompt=sum(request.tokens_read for request in self.requests[::step]))

    def head(self) -> dict[str, Any]:
        """The fields with which the answer and all its pieces begin."""
        return {
            "id": self.id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.chosen.name,
        }

    def choice(
        self,
        index: int,
        text: str,
        logprobs: Sequence[TokenLogprob],
        reason: str | None,
        offset: int,
    ) -> dict[str, Any]:
        """An answer, or a piece of it before which there are `offset` characters."""
        wanted = self.wanted.sampling.logprobs is not None
        return {
            "index": index,
            "text": text,
            "logprobs": _logprobs(logprobs, offset) if wanted else None,
            "finish_reason": reason,
        }


class _Events:
    """Tells of an answer while it grows."""

    def __init__(self, completion: Completion) -> None:
        self._completion, self._usage = completion, completion.usage()
        self._chunks = Chunks(completion.head())
        self._echoes = list(completion.echoes)
        self._lengths = [0 for _ in completion.requests]
        self._is_first = [True for _ in completion.requests]

    def opening(self) -> list[bytes]:
        return []

    def piece(self, index: int, piece: Piece) -> Sequence[bytes]:
        self._usage.add(piece)
        text, self._echoes[index] = self._echoes[index] + piece.text, ""
        completion, offset = self._completion, self._lengths[index]
        ids = completion.wanted.describe_ids(piece.tokens)
        if not (text or piece.logprobs or piece.finished or ids):
            return ()
        if self._is_first[index]:
            self._is_first[index] = False
            request = completion.requests[index]
            ids |= completion.wanted.describe_prompt(completion.served, request)
        self._lengths[index] += len(text)
        choice = completion.choice(index, text, piece.logprobs, piece.finished, offset) | ids
        more = completion.wanted.describe_usage(self._usage)
        return (self._chunks.choice(choice, **more),)

    def closing(self) -> Sequence[bytes]:
        wanted = self._completion.wanted.include_usage
        return (self._chunks.usage(self._usage.json()),) if wanted else ()


def _prompts(body: Body) -> list[Any]:
    """A text, tokens, or a list of either."""
    prompt = body.value("prompt")
    if isinstance(prompt, str) or _are_tokens(prompt):
        return [prompt]
    if isinstance(prompt, list) and prompt and all(_is_prompt(entry) for entry in prompt):
        return prompt
    raise body.fail("prompt", "a string, a list of tokens, or a list of either")


def _is_prompt(value: object) -> bool:
    return isinstance(value, str) or _are_tokens(value)


def _are_tokens(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(entry) is int for entry in value)


def _tokens(served: Served, prompt: str | list[int], marks: bool) -> list[int]:
    if isinstance(prompt, str):
        tokens: list[int] = served.service.tokenizer.encode(prompt, marks=marks).tolist()
        return tokens
    if not all(0 <= token < served.vocab_size for token in prompt):
        raise RequestError(
            f"the prompt has tokens that the model does not know: they lie below "
            f"{served.vocab_size}",
            "prompt",
        )
    return prompt


def _text(served: Served, tokens: Sequence[int]) -> str:
    stream = served.service.tokenizer.stream()
    return stream.feed(tokens) + stream.finish()


def _logprobs(entries: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.token)
    return {
        "tokens": [entry.token for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": list(map(_likeliest, entries)),
        "text_offset": offsets,
    }


def _likeliest(entry: TokenLogprob) -> dict[str, float] | None:
    """The log probabilities of the likeliest tokens and of the entry's own, by text; None for the
    first token, before which nothing stands."""
    return None if entry.logprob is None else {**dict(entry.top), entry.token: entry.logprob}
