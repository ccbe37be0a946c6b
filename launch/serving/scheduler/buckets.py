"""The static shapes that programs are compiled for."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from launch.serving.errors import ServingError


class Bucket(NamedTuple):
    """The shape of one step."""

    rows: int  # sequences
    tokens: int  # new tokens of each; 1 = decoding
    blocks: int  # blocks of the cache that each can look at

    def __str__(self) -> str:
        return f"{self.rows}×{self.tokens} tokens, {self.blocks} blocks"


@dataclass(frozen=True)
class Buckets:
    """All shapes: ascending sizes. Raises ServingError if they are not."""

    decode_rows: tuple[int, ...]
    prefill_rows: tuple[int, ...]
    prefill_tokens: tuple[int, ...]
    blocks: tuple[int, ...]
    batched_tokens: int  # most tokens of a prefill, padding included

    def __post_init__(self) -> None:
        for name in ("decode_rows", "prefill_rows", "prefill_tokens", "blocks"):
            sizes = getattr(self, name)
            if not sizes or sizes[0] < 1 or list(sizes) != sorted(set(sizes)):
                raise ServingError(
                    f"the buckets {name}={list(sizes)} cannot be used: give positive numbers in "
                    "ascending order"
                )
        if self.prefill_rows[0] * self.prefill_tokens[-1] > self.batched_tokens:
            raise ServingError(
                f"a prefill of {self.prefill_rows[0]} rows of {self.prefill_tokens[-1]} tokens "
                f"does not fit max_num_batched_tokens={self.batched_tokens}. Raise it, or lower "
                "the largest bucket."
            )

    @property
    def chunk(self) -> int:
        """The longest piece of a prompt that one step takes, in tokens."""
        return self.prefill_tokens[-1]

    def decode(self, rows: int, blocks: int) -> Bucket:
        """The smallest bucket for so many sequences that decode."""
        return Bucket(_fitting(self.decode_rows, rows), 1, _fitting(self.blocks, blocks))

    def prefill(self, rows: int, tokens: int, blocks: int) -> Bucket:
        """The smallest bucket for so many pieces of prompts."""
        return Bucket(
            _fitting(self.prefill_rows, rows),
            _fitting(self.prefill_tokens, tokens),
            _fitting(self.blocks, blocks),
        )

    def verify(self, rows: int, guesses: int, blocks: int) -> Bucket:
        """The smallest bucket for so many sequences that decode, with guesses."""
        return self.decode(rows, blocks)._replace(tokens=1 + guesses)

    def verifying(self, guesses: int) -> list[Bucket]:
        """Every bucket that a step with guesses may have."""
        decode = (bucket for bucket in self if bucket.tokens == 1)
        return [bucket._replace(tokens=1 + guesses) for bucket in decode]

    def rows_of(self, tokens: int) -> int:
        """How many pieces of prompts of so many tokens fit one step."""
        width = _fitting(self.prefill_tokens, tokens)
        return max(rows for rows in self.prefill_rows if rows * width <= self.batched_tokens)

    def larger(self, bucket: Bucket) -> list[Bucket]:
        """All that a step of this bucket fits into, the smallest first."""
        fitting = [
            other
            for other in self
            if all(size >= own for size, own in zip(other, bucket, strict=True))
        ]
        return sorted(fitting, key=lambda other: (other.rows * other.tokens, other.blocks))

    def __iter__(self) -> Iterator[Bucket]:
        """Every bucket that a step may have."""
        for blocks in self.blocks:
            for rows in self.decode_rows:
                yield Bucket(rows, 1, blocks)
            for tokens in self.prefill_tokens:
                for rows in self.prefill_rows:
                    if rows * tokens <= self.batched_tokens:
                        yield Bucket(rows, tokens, blocks)


def _fitting(sizes: Sequence[int], wanted: int) -> int:
    return sizes[bisect_left(sizes, wanted)]


def powers(first: int, last: int, factor: int) -> tuple[int, ...]:
    """first, first · factor, … and `last` as the largest."""
    sizes = []
    size = first
    while size < last:
        sizes.append(size)
        size *= factor
    return (*sizes, last)
