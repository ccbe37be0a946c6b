"""`/tokenize` and `/detokenize`, by vLLM's names and bodies."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from launch.serving.errors import RequestError
from launch.serving.http.bodies import Body
from launch.serving.http.chat import read_conversation
from launch.serving.http.context import Served
from launch.serving.http.site import Endpoint, WholeAnswer
from launch.text import Tokenizer


@dataclass(frozen=True)
class Tokens(WholeAnswer):
    """The tokens of a text, or of a conversation."""

    served: Served
    tokens: Sequence[int]
    shows_text: bool

    @classmethod
    def read(cls, served: Served, body: Body) -> "Tokens":
        """Raises RequestError or HTTPError for a body that has no text."""
        served.choose(body)
        tokenizer = served.service.tokenizer
        if "messages" in body:
            tokens = read_conversation(served, body)
        else:
            text = body.text("prompt")
            if text is None:
                raise body.fail("prompt", "a string, or messages")
            marks = body.flag("add_special_tokens", True)
            tokens = tokenizer.encode(text, marks=marks).tolist()
        return cls(served, tokens, body.flag("return_token_strs"))

    async def whole(self) -> dict[str, Any]:
        """The tokens as vLLM's JSON object."""
        tokenizer = self.served.service.tokenizer
        texts = [_text(tokenizer, [token]) for token in self.tokens] if self.shows_text else None
        return {
            "count": len(self.tokens),
            "max_model_len": self.served.longest,
            "tokens": self.tokens,
            "token_strs": texts,
        }


@dataclass(frozen=True)
class Text(WholeAnswer):
    """The text of tokens."""

    text: str

    @classmethod
    def read(cls, served: Served, body: Body) -> "Text":
        """Raises RequestError or HTTPError for what are no tokens."""
        served.choose(body)
        tokens, most = body.list("tokens"), served.vocab_size
        if not all(type(token) is int and 0 <= token < most for token in tokens):
            raise RequestError(f"tokens must be numbers below {most}", "tokens")
        return cls(_text(served.service.tokenizer, tokens))

    async def whole(self) -> dict[str, Any]:
        """The text as vLLM's JSON object."""
        return {"prompt": self.text}


def token_endpoints(served: Served) -> dict[str, Endpoint]:
    """The endpoints of `/tokenize` and `/detokenize`, by path."""
    return {
        "/tokenize": Endpoint(partial(Tokens.read, served)),
        "/detokenize": Endpoint(partial(Text.read, served)),
    }


def _text(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    stream = tokenizer.stream(skip_special_tokens=False)
    return stream.feed(tokens) + stream.finish()
