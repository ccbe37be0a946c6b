"""The static shapes of batches of whole texts."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from launch.serving.config import EngineConfig, sizes
from launch.serving.errors import ServingError
from launch.serving.scheduler.buckets import powers

FACTOR = 4  # between the sizes of neighbouring buckets, if none are given
SHORTEST = 32  # tokens


class Shape(NamedTuple):
    """Of one run."""

    rows: int  # texts
    tokens: int  # of each


@dataclass(frozen=True)
class TextBuckets:
    """All shapes: ascending sizes. A batch has at most `batched_tokens`, or one text."""

    rows: tuple[int, ...]
    tokens: tuple[int, ...]
    batched_tokens: int

    @property
    def longest(self) -> int:
        """The longest text, in tokens."""
        return self.tokens[-1]

    def width(self, tokens: int) -> int:
        """The tokens of the smallest shape for a text."""
        return self.tokens[bisect_left(self.tokens, tokens)]

    def rows_of(self, width: int) -> tuple[int, ...]:
        """How many rows there may be of this width."""
        fitting = [rows for rows in self.rows if rows * width <= self.batched_tokens]
        return tuple(fitting) or (1,)

    def shape(self, texts: int, width: int) -> Shape:
        """The smallest shape for so many texts of this width."""
        rows = self.rows_of(width)
        return Shape(rows[bisect_left(rows, texts)], width)

    def __iter__(self) -> Iterator[Shape]:
        """Every shape that a run may have."""
        for width in self.tokens:
            for rows in self.rows_of(width):
                yield Shape(rows, width)


def choose_text_buckets(config: EngineConfig, context: int) -> TextBuckets:
    """The buckets that are given, or powers. Raises ServingError if they cannot be."""
    longest = context if config.max_model_len is None else config.max_model_len
    if longest > context:
        raise ServingError(
            f"max_model_len={longest} is not possible: the model's texts have up to {context} "
            "tokens"
        )
    rows, tokens = config.num_seqs_buckets, config.prefill_buckets
    buckets = TextBuckets(
        rows=sizes("num_seqs_buckets", rows) if rows else powers(1, config.max_num_seqs, FACTOR),
        tokens=sizes("prefill_buckets", tokens)
        if tokens
        else powers(min(SHORTEST, longest), longest, FACTOR),
        batched_tokens=config.max_num_batched_tokens,
    )
    for name, given in (("num_seqs_buckets", buckets.rows), ("prefill_buckets", buckets.tokens)):
        if given[0] < 1 or list(given) != sorted(set(given)):
            raise ServingError(f"--{name}={given}: give positive numbers in ascending order")
    if buckets.longest > longest:
        raise ServingError(
            f"--prefill_buckets={tokens}: the model's texts have up to {longest} tokens"
        )
    return buckets
