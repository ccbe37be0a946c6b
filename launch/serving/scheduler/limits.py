"""What a scheduler has room for."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from launch.serving.cache.windows import WHOLE, KeyWindow, blocks_of_text
from launch.serving.errors import RequestError, ServingError
from launch.serving.requests import Request
from launch.serving.scheduler.buckets import Buckets


class Units(NamedTuple):
    """Runs of tokens that one step computes, as each of them sees all others: from the token
    `first` of the vocabulary on, so many with neighbouring numbers."""

    first: int
    size: int

    def count_whole(self, tokens: Sequence[int], start: int, count: int) -> int:
        """The number of tokens from `start` on, at most `count`, behind which no unit goes on."""
        end = start + count
        inside = (tokens[end] - self.first) % self.size if end < len(tokens) else 0
        return count - inside if inside and tokens[end] >= self.first else count


@dataclass(frozen=True)
class SchedulerLimits:
    """What there is room for. Raises ServingError if it does not fit together."""

    context: int  # longest text, in tokens
    blocks: int  # of the cache
    block_size: int  # tokens
    buckets: Buckets
    prefix_caching: bool = True
    prefills_per_decode: int = 4  # steps of prompts in a row while others could decode
    guesses: int = 0  # tokens after the next one that a step checks, if they are guessed
    groups: int = 1  # of slots, each with rows and a part of the blocks of its own
    windows: tuple[KeyWindow, ...] = (WHOLE,)  # of the groups of layers, each with a block table
    sources: tuple[int, ...] = ()  # lengths of sources that an encoder reads, ascending
    features: int = 0  # numbers of each position of a source; 0 = it is a token
    needs_source: bool = True  # if there are sources, each text has one
    units: Units | None = None  # of texts with images that see themselves whole

    def __post_init__(self) -> None:
        reach = self.buckets.blocks[-1] * self.block_size
        if reach < self.context:
            raise ServingError(
                f"the largest bucket of {self.buckets.blocks[-1]} blocks of {self.block_size} "
                f"tokens holds {reach} tokens, but a text may have {self.context}. Lower "
                "--max_model_len, or give a bucket as large as that."
            )
        if self.prefills_per_decode < 1:
            raise ServingError(f"--prefills_per_decode={self.prefills_per_decode} must be positive")
        sizes = (self.blocks, *self.buckets.decode_rows, *self.buckets.prefill_rows)
        if any(size % self.groups for size in sizes):
            raise ServingError(
                f"{self.blocks} blocks, and steps of {list(self.buckets.decode_rows)} and "
                f"{list(self.buckets.prefill_rows)} rows, cannot be shared out to {self.groups} "
                f"groups: give multiples of {self.groups}"
            )

    @property
    def blocks_of_group(self) -> int:
        """How many blocks a group has."""
        return self.blocks // self.groups

    @property
    def slots(self) -> int:
        """How many sequences there can be in a batch."""
        return self.buckets.decode_rows[-1]

    @cached_property
    def longest(self) -> int:
        """The longest text that context and cache hold, in tokens."""
        return min(self.context, self._most_blocks() * self.block_size)

    def blocks_held(self, length: int) -> int:
        """How many blocks a text of that length holds at once, at most."""
        chunk = max(self.buckets.chunk, 1 + self.guesses)
        return sum(blocks_of_text(self.windows, length, chunk, self.block_size))

    def _most_blocks(self) -> int:
        """How many blocks of text the cache holds of one text alone."""

        def held(blocks: int) -> int:
            return self.blocks_held(blocks * self.block_size)

        counts = range(-(-self.context // self.block_size) + 1)
        return bisect_right(counts, self.blocks_of_group, key=held) - 1

    def check_request(self, request: Request) -> None:
        """Raises RequestError for a request that could never be computed."""
        self.check(len(request.prompt), request.max_tokens)
        length, longest = len(request.source), max(self.sources, default=0)
        if length > longest:
            raise RequestError(
                f"the prompt has {length} tokens, but the encoder reads at most {longest}. "
                "Shorten it.",
                "prompt",
            )
        if longest and self.needs_source and not length:
            raise RequestError("the prompt is empty: give at least one token", "prompt")

    def check(self, prompt_length: int, max_tokens: int) -> None:
        """Raises RequestError for a request that could never be computed."""
        longest = self.longest
        if prompt_length < 1:
            raise RequestError("the prompt is empty: give at least one token", "prompt")
        if max_tokens < 1:
            raise RequestError(f"max_tokens={max_tokens}: it must be at least 1", "max_tokens")
        if prompt_length + max_tokens > longest:
            raise RequestError(
                f"a prompt of {prompt_length} tokens and an answer of {max_tokens} are "
                f"{prompt_length + max_tokens} together, but the maximum context length is "
                f"{longest} tokens. Shorten the prompt or ask for fewer tokens.",
                "max_tokens" if prompt_length < longest else "prompt",
            )
