"""The static shapes of batches of whole texts."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Shape(NamedTuple):
    """The shape of one run."""

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
