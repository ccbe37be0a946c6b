"""The text of an answer as its tokens come, cut at stop strings."""

from collections.abc import Sequence
from typing import NamedTuple

from launch.serving.requests import FinishReason, Logprobs, Output, Request, Times
from launch.stops import StopFinder
from launch.text import Tokenizer


class TokenLogprob(NamedTuple):
    """The logarithm of a token's probability, and the likeliest tokens in its place."""

    token: str
    logprob: float | None  # None: it is the first of the prompt
    top: Sequence[tuple[str, float]]


class Piece(NamedTuple):
    """A further part of an answer."""

    text: str
    tokens: Sequence[int]
    logprobs: Sequence[TokenLogprob]  # of tokens; before the first, those of an echoed prompt
    finished: FinishReason | None
    cached_tokens: int = 0
    error: str = ""
    times: Times | None = None
    stop: str | None = None  # the stop string that has ended it
    scores: Sequence[Logprobs | None] = ()  # of the prompt's tokens, with the first piece
    waited: float | None = None  # seconds until the first step, with the first piece


class Writing(NamedTuple):
    """The way in which tokens become text."""

    stops: Sequence[str] = ()
    include_stops: bool = False  # what ends an answer is part of it
    skip_special_tokens: bool = True
    shows_numbers: bool = False  # with logprobs, tokens are told by their numbers
    echo: bool = False  # the prompt is part of the answer


PLAIN = Writing()


class Answer:
    """One answer as text."""

    def __init__(self, tokenizer: Tokenizer, writing: Writing, request: Request) -> None:
        self._tokenizer, self._request, self._writing = tokenizer, request, writing
        self._stream = tokenizer.stream(skip_special_tokens=writing.skip_special_tokens)
        self._finder = StopFinder(writing.stops, include=writing.include_stops)
        self._silent = frozenset() if writing.include_stops else request.stop_tokens
        self._early = request.min_tokens  # tokens still to come in which no stop string counts

    def feed(self, output: Output) -> Piece:
        """The text that an output brings."""
        _, tokens, entries, finished, cached, error, times, scored, waited = output
        if finished == "error":
            return Piece("", (), (), "error", cached, error)
        logprobs = []
        if scored and self._writing.echo:
            pairs = zip(self._request.prompt, scored, strict=False)
            logprobs = [self._name_token(token, entry) for token, entry in pairs]
        if self._request.prompt_only:
            ending = finished and "length"
            return Piece("", (), logprobs, ending, cached, "", times, None, scored, waited)
        text = ""
        if self._early:
            early, late = tokens[: self._early], tokens[self._early :]
            self._early -= len(early)
            text = self._stream.feed(self._without_stops(early))
        else:
            late = tokens
        text += self._finder.feed(self._stream.feed(self._without_stops(late)))
        stop = self._finder.stop
        if stop is not None:
            finished = "stop"
        elif finished is not None:
            text += self._finder.feed(self._stream.finish())
            text += self._finder.finish()
        if entries:
            pairs = zip(tokens, entries, strict=True)
            logprobs += [self._name_token(token, entry) for token, entry in pairs]
        return Piece(text, tokens, logprobs, finished, cached, "", times, stop, scored, waited)

    def _without_stops(self, tokens: Sequence[int]) -> Sequence[int]:
        """The tokens without those that end an answer and are no part of it."""
        if self._silent.isdisjoint(tokens):
            return tokens
        return [token for token in tokens if token not in self._silent]

    def _name_token(self, token: int, entry: Logprobs | None) -> TokenLogprob:
        if entry is None:
            return TokenLogprob(self._text(token), None, ())
        count = self._request.sampling.logprobs
        top = zip(entry.tokens[:count], entry.values, strict=False)
        return TokenLogprob(
            self._text(token), entry.chosen, [(self._text(other), value) for other, value in top]
        )

    def _text(self, token: int) -> str:
        name = f"token_id:{token}"
        return name if self._writing.shows_numbers else text_of_token(self._tokenizer, token)


def text_of_token(tokenizer: Tokenizer, token: int) -> str:
    """vLLM's name for a token that is no text alone, such as a part of a character."""
    stream = tokenizer.stream()
    text = stream.feed([token]) + stream.finish()
    return f"token_id:{token}" if not text or "\ufffd" in text else text
