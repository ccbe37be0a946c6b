"""Parts of documents, by number: what rows are made of."""

from collections.abc import Mapping

import numpy as np

from launch.data.documents import Documents
from launch.data.records import Counts

Row = Mapping[str, np.ndarray]


def next_tokens(text: np.ndarray) -> Row:
    """The tokens but the last, int32 [N - 1], those that follow, and weights of 1."""
    text = text.astype(np.int32)
    weights = np.ones(len(text) - 1, np.float32)
    return {"tokens": text[:-1], "targets": text[1:], "weights": weights}


class Windows:
    """Runs of seq_len + 1 tokens that begin at every `stride`-th token: [seq_len] with targets.

    A grain random-access source.
    """

    def __init__(self, tokens: np.ndarray, seq_len: int, stride: int = 1) -> None:
        self._tokens, self._seq_len, self._stride = tokens, seq_len, stride

    def __len__(self) -> int:
        return max(0, (len(self._tokens) - self._seq_len - 1) // self._stride + 1)

    def __getitem__(self, number: int) -> Row:
        start = number * self._stride
        return next_tokens(self._tokens[start : start + self._seq_len + 1])


class Pieces:
    """Parts of documents, [n] tokens with targets. A grain random-access source."""

    def __init__(self, tokens: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> None:
        self._tokens, self._starts, self._lengths = tokens, starts, lengths

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: int) -> Row:
        start = self._starts[number]
        return next_tokens(self._tokens[start : start + self._lengths[number] + 1])


def whole(documents: Documents, counts: Counts) -> Pieces:
    """Every document that has a token to predict."""
    lengths = documents.ends - documents.starts - 1
    kept = lengths > 0
    counts.empty += int((~kept).sum())
    return Pieces(documents.tokens, documents.starts[kept], lengths[kept])


def cut(documents: Documents, longest: int, policy: str, counts: Counts) -> Pieces:
    """Every document that has a token to predict, in pieces of at most `longest` targets.

    `policy` says what becomes of the others: "split" (every target is in exactly one piece),
    "truncate" or "drop".
    """
    lengths = documents.ends - documents.starts - 1
    long = lengths > longest
    counts.empty += int((lengths < 1).sum())
    number = np.where(lengths > 0, 1, 0)
    if policy == "split":
        counts.split += int(long.sum())
        number = -(-lengths.clip(0) // longest)
    elif policy == "truncate":
        counts.truncated += int(long.sum())
    else:
        counts.dropped += int(long.sum())
        number = np.where(long, 0, number)
    offsets = longest * (np.arange(number.sum()) - np.repeat(np.cumsum(number) - number, number))
    starts = np.repeat(documents.starts, number) + offsets
    remaining = np.repeat(lengths, number) - offsets
    return Pieces(documents.tokens, starts, np.minimum(remaining, longest))
