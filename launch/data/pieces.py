"""Parts of documents, by number, of which rows are made."""

from collections.abc import Mapping

import numpy as np

from launch.data.documents import Documents
from launch.data.records import Counts

Row = Mapping[str, np.ndarray]


def next_tokens(documents: Documents, start: int, length: int) -> Row:
    """`length` tokens from `start` on, int32, the tokens that follow each, and weights: 1 for
    tokens to predict."""
    text = documents.tokens[start : start + length + 1].astype(np.int32)
    weights = np.ones(length, np.float32)
    if documents.learnt is not None:
        weights = documents.learnt[start + 1 : start + length + 1].astype(np.float32)
    return {"tokens": text[:-1], "targets": text[1:], "weights": weights}


class Windows:
    """Runs of seq_len + 1 tokens that begin at every `stride`-th token: [seq_len] with targets.

    A grain random-access source.
    """

    def __init__(self, documents: Documents, seq_len: int, stride: int = 1) -> None:
        self._documents, self._seq_len, self._stride = documents, seq_len, stride

    def __len__(self) -> int:
        return max(0, (len(self._documents.tokens) - self._seq_len - 1) // self._stride + 1)

    def __getitem__(self, number: int) -> Row:
        return next_tokens(self._documents, number * self._stride, self._seq_len)


class Pieces:
    """Parts of documents, [n] tokens with targets: those in which something is to be predicted.

    A grain random-access source.
    """

    def __init__(self, documents: Documents, starts: np.ndarray, lengths: np.ndarray) -> None:
        if documents.learnt is not None:
            sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(documents.learnt)])
            kept = sums[starts + lengths + 1] > sums[starts + 1]
            starts, lengths = starts[kept], lengths[kept]
        self._documents, self._starts, self._lengths = documents, starts, lengths

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: int) -> Row:
        return next_tokens(self._documents, self._starts[number], self._lengths[number])


def whole(documents: Documents, counts: Counts) -> Pieces:
    """Every document that has a token to predict."""
    kept = documents.take(~_empty(documents, counts))
    return Pieces(kept, kept.starts, kept.ends - kept.starts - 1)


def cut(documents: Documents, longest: int, policy: str, counts: Counts) -> Pieces:
    """Every document that has a token to predict, in pieces of at most `longest` targets.

    `policy` determines what happens to longer ones: "split" (every target is in exactly one
    piece), "truncate" or "drop".
    """
    documents = documents.take(~_empty(documents, counts))
    lengths = documents.ends - documents.starts - 1
    long = lengths > longest
    counts.add_long(policy, int(long.sum()))
    number = {"split": -(-lengths // longest), "truncate": np.ones_like(lengths), "drop": ~long}
    pieces = number[policy].astype(np.int64)
    offsets = longest * (np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces))
    starts = np.repeat(documents.starts, pieces) + offsets
    remaining = np.repeat(lengths, pieces) - offsets
    return Pieces(documents, starts, np.minimum(remaining, longest))


def _empty(documents: Documents, counts: Counts) -> np.ndarray:
    """Which documents have nothing to predict, bool [D]; counts them."""
    empty: np.ndarray = documents.ends - documents.starts < 2
    if documents.learnt is not None:
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(documents.learnt)])
        firsts = np.minimum(documents.starts + 1, documents.ends)
        empty = empty | (sums[documents.ends] == sums[firsts])
    counts.empty += int(empty.sum())
    return empty
