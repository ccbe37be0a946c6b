"""The fields of a body about drawing tokens, for both kinds of answers."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launch.serving.answers import Writing
from launch.serving.errors import RequestError
from launch.serving.http.bodies import Body
from launch.serving.http.context import Choice, Served, Usage
from launch.serving.requests import MOST_LOGPROBS, Logprobs, Request, SamplingParameters
from launch.text import Tokenizer

MOST_STOPS = 16
MOST_CHOICES = 128  # answers to one body
MOST_BAD_WORDS = 1000


@dataclass(frozen=True)
class Wanted:
    """The wishes of a body about its answers, beside the prompts."""

    sampling: SamplingParameters
    max_tokens: int | None  # None = as many as fit
    n: int  # answers to each prompt
    writing: Writing
    stop_tokens: frozenset[int]
    min_tokens: int
    allowed_tokens: frozenset[int]
    banned: Sequence[Sequence[int]]
    prompt_logprobs: int | None
    truncation: int | None  # tokens of a prompt that are kept, its last ones; -1: as many as fit
    cache_salt: str
    priority: int
    client: str
    stream: bool
    include_usage: bool
    usage_of_each: bool  # with every piece of a stream
    shows_ids: bool  # of the tokens of prompt and answer

    def requests(
        self,
        served: Served,
        chosen: Choice,
        prompts: Sequence[Sequence[int]],
        form: str | None = None,
    ) -> list[Request]:
        """`n` requests for each prompt, with seeds that count up. `form`: the grammar of the
        answers."""
        longest = served.longest
        if len(prompts) * self.n > MOST_CHOICES:
            raise RequestError(
                f"{len(prompts)} prompts with n={self.n} are more than {MOST_CHOICES} answers", "n"
            )
        requests = []
        for prompt in prompts:
            room = longest - len(prompt)
            if self.max_tokens is None and room < 1:
                raise RequestError(
                    f"the prompt has {len(prompt)} tokens, but the maximum context length is "
                    f"{longest} tokens, with at least one for the answer. Shorten the prompt.",
                    "prompt",
                )
            for choice in range(self.n):
                requests.append(
                    Request(
                        served.service.new_id(),
                        prompt,
                        self.max_tokens if self.max_tokens is not None else room,
                        replace(self.sampling, seed=self.sampling.seed + choice),
                        self.stop_tokens,
                        self.priority,
                        form,
                        adapter=chosen.adapter,
                        prompt_logprobs=self.prompt_logprobs,
                        min_tokens=self.min_tokens,
                        allowed_tokens=self.allowed_tokens,
                        banned=self.banned,
                        cache_salt=self.cache_salt,
                        client=self.client,
                    )
                )
        return requests

    def shorten(self, prompt: Sequence[int], longest: int) -> Sequence[int]:
        """Cuts a prompt at its beginning, if that was asked for; `longest`: of a text."""
        if self.truncation is None:
            return prompt
        fitting = max(longest - (self.max_tokens or 1), 1)
        return prompt[-(fitting if self.truncation < 0 else self.truncation) :]

    def describe_prompt(
        self, served: Served, request: Request, scores: Sequence[Logprobs | None] = ()
    ) -> dict[str, Any]:
        """What was asked for of a prompt: its tokens' numbers, and what the model says of them."""
        told: dict[str, Any] = {}
        if self.shows_ids:
            seen, tokens = served.pictures, request.prompt
            told["prompt_token_ids"] = tokens if seen is None else seen.shown(tokens)
        if self.prompt_logprobs is not None:
            most = self.prompt_logprobs
            told["prompt_logprobs"] = served.describe_scores(request, scores, most)
        return told

    def describe_usage(self, usage: Usage) -> dict[str, Any]:
        """What all took until a piece of a stream, if that was asked for."""
        return {"usage": usage.json()} if self.usage_of_each else {}

    def describe_ids(self, tokens: Sequence[int]) -> dict[str, Any]:
        """The numbers of an answer's tokens, if they were asked for."""
        return {"token_ids": tokens} if self.shows_ids else {}


def read_wanted(
    served: Served, body: Body, *, max_tokens: int | None, logprobs: int | None
) -> Wanted:
    """The fields that both kinds of bodies have; names of vLLM for those that OpenAI lacks.

    Raises RequestError for a value that cannot be.
    """
    if max_tokens is not None and max_tokens < 1:
        raise RequestError(f"max_tokens is {max_tokens}; it must be at least 1", "max_tokens")
    n = body.integer("n", 1)
    if not 1 <= n <= MOST_CHOICES:
        raise body.fail("n", f"a number from 1 to {MOST_CHOICES}")
    if body.integer("best_of", n) != n:
        raise RequestError("best_of is not supported: leave it out, or give n's value", "best_of")
    seed, streaming = body.integer("seed"), body.object("stream_options")
    vocab_size, tokenizer = served.vocab_size, served.service.tokenizer
    own_stops = () if body.flag("ignore_eos") else served.stop_tokens
    return Wanted(
        sampling=SamplingParameters(
            temperature=body.number("temperature", 1.0),
            top_k=max(body.integer("top_k", 0), 0),  # -1 is vLLM's word for all
            top_p=body.number("top_p", 1.0),
            min_p=body.number("min_p", 0.0),
            presence_penalty=body.number("presence_penalty", 0.0),
            frequency_penalty=body.number("frequency_penalty", 0.0),
            repetition_penalty=body.number("repetition_penalty", 1.0),
            logit_bias=_biases(body, vocab_size),
            seed=secrets.randbits(62) if seed is None else seed,
            logprobs=logprobs,
        ),
        max_tokens=max_tokens,
        n=n,
        writing=Writing(
            body.texts("stop", MOST_STOPS),
            body.flag("include_stop_str_in_output"),
            body.flag("skip_special_tokens", True),
            body.flag("return_tokens_as_token_ids"),
        ),
        min_tokens=body.integer("min_tokens", 0),
        stop_tokens=frozenset([*own_stops, *_tokens(body, "stop_token_ids", vocab_size)]),
        allowed_tokens=frozenset(_tokens(body, "allowed_token_ids", vocab_size)),
        banned=_runs(tokenizer, body.texts("bad_words", MOST_BAD_WORDS)),
        prompt_logprobs=_prompt_logprobs(body),
        truncation=_truncation(body),
        cache_salt=body.text("cache_salt", ""),
        priority=body.integer("priority", 0),
        client=body.client,
        stream=body.flag("stream"),
        include_usage=streaming.flag("include_usage"),
        usage_of_each=streaming.flag("continuous_usage_stats"),
        shows_ids=body.flag("return_token_ids"),
    )


def _biases(body: Body, vocab_size: int) -> Mapping[int, float]:
    biases = body.object("logit_bias")
    result: dict[int, float] = {}
    for name in biases.all():
        if not name.isdecimal() or int(name) >= vocab_size:
            raise RequestError(
                f"logit_bias names the token {name[:20]!r}; tokens are numbers below {vocab_size}",
                "logit_bias",
            )
        value = biases.number(name, 0.0)
        if not -100 <= value <= 100:
            raise biases.fail(name, "a number from -100 to 100")
        result[int(name)] = value
    return result


def _tokens(body: Body, name: str, vocab_size: int) -> list[int]:
    values = body.list(name)
    if not all(type(value) is int and 0 <= value < vocab_size for value in values):
        raise RequestError(f"{name} must be numbers of tokens below {vocab_size}", name)
    return values


def _runs(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """The tokens that spell each word, also behind a space where that is another token."""
    runs = []
    for word in words:
        plain, spaced = (
            tokenizer.encode(text, marks=False).tolist() for text in (word, f" {word.lstrip()}")
        )
        runs.append(plain)
        if len(spaced) == len(plain) and spaced[0] != plain[0]:
            runs.append(spaced)
    return runs


def _prompt_logprobs(body: Body) -> int | None:
    count: int | None = body.integer("prompt_logprobs")
    if count is None:
        return None
    if not 0 <= count <= MOST_LOGPROBS:
        raise body.fail("prompt_logprobs", f"a number from 0 to {MOST_LOGPROBS}")
    if body.flag("stream"):
        raise RequestError("prompt_logprobs does not go with stream=true", "prompt_logprobs")
    return count


def _truncation(body: Body) -> int | None:
    count: int | None = body.integer("truncate_prompt_tokens")
    if count is not None and count != -1 and count < 1:
        raise body.fail("truncate_prompt_tokens", "a number from 1, or -1 for as many as fit,")
    return count
