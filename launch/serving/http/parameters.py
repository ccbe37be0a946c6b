"""The fields of a body about drawing tokens, for both kinds of answers."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from launch.serving.answers import Writing
from launch.serving.errors import RequestError
from launch.serving.http.bodies import Body
from launch.serving.requests import Adapter, Request, SamplingParameters

MOST_STOPS = 16
MOST_CHOICES = 128  # answers to one body


@dataclass(frozen=True)
class Wanted:
    """The wishes of a body about its answers, beside the prompts."""

    sampling: SamplingParameters
    max_tokens: int | None  # None = as many as fit
    n: int  # answers to each prompt
    writing: Writing
    stop_tokens: frozenset[int]
    min_tokens: int
    priority: int
    client: str
    stream: bool
    include_usage: bool
    usage_of_each: bool  # with every piece of a stream

    def requests(
        self,
        prompts: Sequence[Sequence[int]],
        longest: int,
        new_id: Callable[[], str],
        form: str | None = None,
        adapter: Adapter | None = None,
    ) -> list[Request]:
        """`n` requests for each prompt, with seeds that count up. `longest`: of a text, in
        tokens; `form`: the grammar of the answers."""
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
                        new_id(),
                        prompt,
                        self.max_tokens if self.max_tokens is not None else room,
                        replace(self.sampling, seed=self.sampling.seed + choice),
                        self.stop_tokens,
                        self.priority,
                        form,
                        adapter=adapter,
                        min_tokens=self.min_tokens,
                        client=self.client,
                    )
                )
        return requests


def read_wanted(
    body: Body,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    stop_tokens: Sequence[int],
    vocab_size: int,
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
    own_stops = () if body.flag("ignore_eos") else stop_tokens
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
        ),
        min_tokens=body.integer("min_tokens", 0),
        stop_tokens=frozenset([*own_stops, *_tokens(body.list("stop_token_ids"), vocab_size)]),
        priority=body.integer("priority", 0),
        client=body.client,
        stream=body.flag("stream"),
        include_usage=streaming.flag("include_usage"),
        usage_of_each=streaming.flag("continuous_usage_stats"),
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


def _tokens(values: Sequence[object], vocab_size: int) -> list[int]:
    tokens = [value for value in values if type(value) is int and 0 <= value < vocab_size]
    if len(tokens) != len(values):
        raise RequestError(
            f"stop_token_ids must be numbers of tokens below {vocab_size}", "stop_token_ids"
        )
    return tokens
