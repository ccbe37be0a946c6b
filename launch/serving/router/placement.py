"""Which of several servers computes a request: a state machine without clocks or sockets."""

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_BLOCK = 256
"""Characters of a beginning that are told apart at once; a cache's blocks are of some 16 tokens."""
_MOST_BLOCKS = 1 << 16
"""Blocks that are remembered of each server, 16 MiB of text: those last asked for."""
_CHARACTERS_PER_TOKEN = 4
"""A token's length in English, by OpenAI's rule of thumb; servers alone know their tokenizers."""
_PROMPTS = ("system", "instructions", "documents", "messages", "prompt", "input", "query", "text_1")
_LENGTHS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_USUAL_LENGTH = 16
"""Tokens of an answer whose body names no number, as of OpenAI's completions."""


class Work(NamedTuple):
    """What a body asks for."""

    blocks: tuple[int, ...]
    """A hash for each block of the prompt, of all the text up to there."""
    prompt_tokens: int
    answer_tokens: int


def measure_work(body: Mapping[str, Any]) -> Work:
    """The work of a JSON body of any generating or pooling endpoint, about."""
    asked = {name: body[name] for name in _PROMPTS if name in body}
    text = json.dumps(asked, ensure_ascii=False, default=str)
    numbers = [body.get(name) for name in _LENGTHS]
    lengths = [value for value in numbers if isinstance(value, int)]
    count = body.get("n")
    answers = count if isinstance(count, int) and count > 0 else 1
    return Work(
        tuple(_hashes(text)),
        len(text) // _CHARACTERS_PER_TOKEN,
        max(0, lengths[0] if lengths else _USUAL_LENGTH) * answers,
    )


NO_WORK = Work((), 0, 0)
"""The work of a request without a prompt."""


def _hashes(text: str) -> Iterator[int]:
    value = 0
    for start in range(0, len(text), _BLOCK):
        value = hash((value, text[start : start + _BLOCK]))
        yield value


@dataclass
class _Server:
    left: int = 0
    """Tokens that are left to compute, about."""
    known: OrderedDict[int, None] = field(default_factory=OrderedDict)


class Ticket(NamedTuple):
    """A request that a server has: to be handed back when it is over."""

    number: int
    tokens: int


class Placement:
    """A request goes where the fewest tokens are left to compute, its own among them. Tokens of
    beginnings that a server has been asked for before, and so has in its cache, do not count."""

    def __init__(self, count: int) -> None:
        self._servers = [_Server() for _ in range(count)]

    def order(self, work: Work, numbers: Sequence[int]) -> list[int]:
        """The numbers of these servers, the best for the work first."""
        return sorted(numbers, key=lambda n: (self._servers[n].left + self._new_tokens(work, n), n))

    def begin(self, work: Work, number: int) -> Ticket:
        """Notes that a server has got a request."""
        server, tokens = self._servers[number], self._new_tokens(work, number)
        server.left += tokens
        for block in work.blocks:
            server.known[block] = None
            server.known.move_to_end(block)
        while len(server.known) > _MOST_BLOCKS:
            server.known.popitem(last=False)
        return Ticket(number, tokens)

    def end(self, ticket: Ticket) -> None:
        """Notes that a request is over, in whatever way."""
        self._servers[ticket.number].left -= ticket.tokens

    def forget_cache(self, number: int) -> None:
        """Notes that a server has begun anew."""
        self._servers[number].known.clear()

    def tokens_left(self, number: int) -> int:
        """Tokens that a server has left to compute, about."""
        return self._servers[number].left

    def _new_tokens(self, work: Work, number: int) -> int:
        known, cached = self._servers[number].known, 0
        for block in work.blocks:
            if block not in known:
                break
            cached += _BLOCK // _CHARACTERS_PER_TOKEN
        return max(0, work.prompt_tokens - cached) + work.answer_tokens
