"""The requests of clients, and their outputs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from launch.serving.errors import RequestError

MOST_BIASES = 300  # tokens of one request whose logits are changed
MOST_PRIORITY = (1 << 63) - 1
MOST_LOGPROBS = 20  # likeliest tokens that are reported beside the chosen one

FinishReason = Literal["stop", "length", "cancelled", "error"]

Source = Sequence[int] | np.ndarray
"""What an encoder reads: tokens, or features FP32 [frames, numbers of each]."""


@dataclass(frozen=True)
class SamplingParameters:
    """The way in which the tokens of one request are drawn.

    Order: bias, repetition penalty, frequency and presence penalty, grammar, temperature, then
    top-k, top-p and min-p. Raises RequestError if a field is out of range.
    """

    temperature: float = 1.0  # divides the logits; 0 always takes the likeliest token
    top_k: int = 0  # draw from the k likeliest tokens only; 0 = all
    top_p: float = 1.0  # draw from the fewest tokens whose probability reaches this
    min_p: float = 0.0  # draw from tokens with at least this share of the likeliest one's
    presence_penalty: float = 0.0  # subtracted from the logits of tokens written before
    frequency_penalty: float = 0.0  # the same for each time they were written
    repetition_penalty: float = 1.0  # divides positive logits of tokens in prompt and answer
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # added to logits, by token
    seed: int = 0  # the draws depend on it and on the place in the answer alone
    logprobs: int | None = None  # likeliest tokens to report with each one drawn; None = nothing

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise RequestError(
                    f"{name}={value} is out of range: it must lie between {low} and {high}", name
                )
        if not self.top_p > 0:
            raise RequestError("top_p=0 leaves no token: use a small number, or top_k=1", "top_p")
        if not self.repetition_penalty > 0:
            raise RequestError("repetition_penalty=0 is not positive", "repetition_penalty")
        if len(self.logit_bias) > MOST_BIASES:
            raise RequestError(
                f"logit_bias has {len(self.logit_bias)} tokens; {MOST_BIASES} are possible",
                "logit_bias",
            )

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0 or self.top_k == 1

    @property
    def is_truncated(self) -> bool:
        """Whether tokens must be sorted."""
        return self.top_k > 1 or self.top_p < 1

    @property
    def changes_logits(self) -> bool:
        """Whether logits depend on more than the model."""
        return bool(
            self.logit_bias
            or self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1
        )


# (field, smallest, largest value): OpenAI's, and vLLM's for those that it adds.
_RANGES = (
    ("temperature", 0.0, 2.0),
    ("top_k", 0, 1 << 30),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("repetition_penalty", 0.0, 10.0),
    ("seed", -(1 << 63), (1 << 64) - 1),
    ("logprobs", 0, MOST_LOGPROBS),
)


class Grammar(Protocol):
    """Which tokens may follow in one answer."""

    def mask(self) -> Any:
        """The allowed tokens as bits, uint32 [ceil(V / 32)], the lowest bit first."""

    def accept(self, token: int) -> bool:
        """The answer goes on with this token. False: nothing may follow, the answer is complete.
        Raises RequestError if what may follow cannot be computed."""


class Adapter(NamedTuple):
    """An adapter that can be asked for."""

    name: str
    path: Path
    number: int  # no other adapter ever has it
    place: int = 0  # in the stacks of the device, where it has one


@dataclass(frozen=True, eq=False)
class Request:
    """One text to continue."""

    id: str
    prompt: Sequence[int]  # tokens; for encoder-decoders, what every answer begins with
    max_tokens: int  # of the answer
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    stop_tokens: frozenset[int] = frozenset()  # the answer ends with any of them
    priority: int = 0  # lower numbers go first
    form: str | None = None  # a grammar's text, of which the engine's process makes the next
    grammar: Grammar | None = None
    adapter: Adapter | None = None
    answered: int = 0  # tokens at the end of the prompt that are the answer's first ones
    source: Source = ()  # what an encoder reads
    prompt_logprobs: int | None = None  # likeliest tokens to report with each one of the prompt
    prompt_only: bool = False  # the token that is drawn is of no interest
    min_tokens: int = 0  # before these no stop token is drawn
    allowed_tokens: Collection[int] = ()  # the answer holds no others; empty = all may come
    banned: Sequence[Sequence[int]] = ()  # runs of tokens that the answer never holds
    cache_salt: str = ""  # only texts with the same one share cache blocks
    client: str = ""  # who asks: clients get equal shares

    def __post_init__(self) -> None:
        """Raises RequestError for a priority that slots cannot hold, or a least length that cannot
        be."""
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise RequestError(
                f"min_tokens={self.min_tokens} must lie between 0 and the {self.max_tokens} tokens "
                "that the answer may have",
                "min_tokens",
            )
        if not -MOST_PRIORITY <= self.priority <= MOST_PRIORITY:
            raise RequestError(
                f"priority={self.priority} is out of range: it must lie between {-MOST_PRIORITY} "
                f"and {MOST_PRIORITY}",
                "priority",
            )

    @property
    def tokens_read(self) -> int:
        """The number of tokens that the client has sent."""
        is_text = len(self.source) > 0 and not isinstance(self.source, np.ndarray)
        return len(self.source if is_text else self.prompt)

    @property
    def is_bounded(self) -> bool:
        """Whether some tokens may not follow, whatever the model's logits are."""
        return bool(self.form or self.min_tokens or self.allowed_tokens or self.banned)

    @property
    def can_speculate(self) -> bool:
        """Whether each token depends on those before it through the model alone."""
        sampling = self.sampling
        return self.grammar is None and not sampling.changes_logits and sampling.logprobs is None


class Logprobs(NamedTuple):
    """Logarithms of the probabilities before temperature and truncation."""

    chosen: float
    tokens: Sequence[int]  # the likeliest first
    values: Sequence[float]
    rank: int = 0  # of the chosen one, if it is a prompt's: 1 is the likeliest


class Times(NamedTuple):
    """The times of a request, in seconds of a simulated device's clock."""

    arrived: float
    first: float  # the end of the step that brought the first of the new tokens
    ended: float  # of the step that brought the last one


class Output(NamedTuple):
    """The tokens that a step, or several, brought for a request."""

    id: str
    tokens: Sequence[int]  # new ones
    logprobs: Sequence[Logprobs]  # one per token, if they were asked for
    finished: FinishReason | None
    cached_tokens: int  # of the prompt, found in the cache
    error: str = ""
    times: Times | None = None  # if the device's time is simulated
    prompt_logprobs: Sequence[Logprobs | None] = ()  # with the first token; None for its first
    waited: float | None = None  # seconds until the first step; with the first tokens alone

    @classmethod
    def joined(cls, parts: Sequence["Output"]) -> "Output":
        """Outputs of one request, in their order, as if one step had brought all."""
        if len(parts) == 1:
            return parts[0]
        first, last = parts[0], parts[-1]
        times = last.times
        if times is not None and first.times is not None:
            times = times._replace(first=first.times.first)
        return cls(
            last.id,
            [token for part in parts for token in part.tokens],
            [entry for part in parts for entry in part.logprobs],
            last.finished,
            last.cached_tokens,
            last.error,
            times,
            first.prompt_logprobs or last.prompt_logprobs,
            first.waited,
        )
