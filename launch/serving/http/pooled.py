"""A model of whole texts, as the endpoints of vectors and classes work with it."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from launch.pooling.text import Text
from launch.serving.errors import RequestError
from launch.serving.http.batch_metrics import BatchMetrics
from launch.serving.http.bodies import Body
from launch.serving.http.computing import Computing
from launch.serving.http.errors import check_model
from launch.text import Tokenizer

MOST_TEXTS = 2048  # of one body, as OpenAI has it


@dataclass(frozen=True)
class Pooled:
    """A model of whole texts behind the API."""

    name: str
    computing: Computing[Text, np.ndarray]
    metrics: BatchMetrics
    tokenizer: Tokenizer
    vocab_size: int
    longest: int  # text, in tokens
    created: int  # Unix time of the start
    labels: Sequence[str] = ()  # of classes
    lower: bool = False  # texts are brought to lower case
    independent: bool = False  # classes do not exclude each other

    def check_model(self, body: Body) -> None:
        """Raises HTTPError if the body asks for another model; none at all is this one."""
        check_model(body.text("model", self.name), self.name)

    def text(self, entry: Any, parameter: str, other: str | None = None) -> Text:
        """A text, two that belong together, or tokens. Raises RequestError for what is none, is
        empty or too long."""
        if entry and isinstance(entry, str):
            parts = (entry, other)
            if self.lower:
                parts = (entry.lower(), None if other is None else other.lower())
            spans = self.tokenizer.spans(*parts, marks=True)
            text = Text(spans.tokens.tolist(), spans.types.tolist())
        else:
            text = Text(list(entry), [0] * len(entry))
        if not text.tokens:
            raise RequestError(f"{parameter} holds an empty text: give a character", parameter)
        if not all(0 <= token < self.vocab_size for token in text.tokens):
            raise RequestError(
                f"{parameter} has tokens that the model does not know: they lie below "
                f"{self.vocab_size}",
                parameter,
            )
        if len(text.tokens) > self.longest:
            raise RequestError(
                f"a text of {parameter} has {len(text.tokens)} tokens, but the maximum context "
                f"length is {self.longest} tokens. Shorten it.",
                parameter,
            )
        return text

    def texts(self, body: Body, parameter: str) -> list[Text]:
        """The field's text, tokens, or a list of either."""
        value = body.value(parameter)
        if isinstance(value, str) or _are_tokens(value):
            value = [value]
        if not (isinstance(value, list) and value and all(map(_is_text, value))):
            raise body.fail(parameter, "a string, a list of tokens, or a list of either")
        check_count(len(value), parameter)
        return [self.text(entry, parameter) for entry in value]

    async def compute(self, texts: Sequence[Text]) -> list[np.ndarray]:
        """Computes the model's results for the texts, and measures that."""
        with self.metrics.measured(count_tokens(texts)):
            return await self.computing.compute(texts)

    def new_id(self, kind: str) -> str:
        """The identifier of an answer."""
        return f"{kind}-{uuid.uuid4().hex}"


def check_count(count: int, parameter: str) -> None:
    """Raises RequestError for more texts than one body may have."""
    if count > MOST_TEXTS:
        raise RequestError(
            f"{parameter} has {count} texts; one request may have {MOST_TEXTS}", parameter
        )


def usage_of(texts: Sequence[Text]) -> dict[str, int]:
    """OpenAI's object of the tokens that texts have."""
    tokens = count_tokens(texts)
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def count_tokens(texts: Sequence[Text]) -> int:
    """The number of tokens of all texts."""
    return sum(len(text.tokens) for text in texts)


def _is_text(value: object) -> bool:
    return isinstance(value, str) or _are_tokens(value)


def _are_tokens(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(entry) is int for entry in value)
