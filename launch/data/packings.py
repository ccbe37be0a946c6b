"""How documents become rows of seq_len positions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grain
import numpy as np
from grain.experimental import ConcatThenSplitIterDataset, FirstFitPackIterDataset

from launch.data.config import DataConfig
from launch.data.documents import Documents
from launch.data.pieces import Pieces, Row, Windows, cut, whole
from launch.data.records import Counts
from launch.errors import DataError

# Rows that first-fit fills side by side. More leave less padding, and need memory.
_BINS = 64

Rows = Any  # a grain.MapDataset or grain.IterDataset of Row; its library has no types


@dataclass(frozen=True)
class Packing:
    """A way to make rows of documents."""

    marks: bool  # whether documents keep the tokens that begin or end them
    split: Callable[[Documents, float, int], tuple[Documents, Documents]]  # training, held-out
    training: Callable[[Documents, DataConfig, int, Counts], Any]  # random-access sources …
    held_out: Callable[[Documents, DataConfig, int, Counts], Any]
    rows: Callable[[Any, int, int], Rows]  # … of which a MapDataset becomes rows
    count: Callable[[Any, int, int], int]  # rows that hold all tokens of a training source once


def _split_tokens(
    documents: Documents, fraction: float, seq_len: int
) -> tuple[Documents, Documents]:
    """The end of all tokens is held out."""
    tokens = documents.tokens
    size = round(len(tokens) * fraction)
    if len(tokens) - size < seq_len + 1 or (fraction and size < seq_len + 1):
        smaller = min(fraction, 1 - fraction) or 1
        needed = int((seq_len + 1) / smaller) + 1
        raise DataError(
            f"the text has {len(tokens)} tokens, which is too few for windows of "
            f"--seq_len={seq_len}. Use at least {needed} tokens of text, or a smaller --seq_len."
        )
    end = len(tokens) - size
    return _range(documents, 0, end), _range(documents, end, len(tokens))


def _range(documents: Documents, start: int, end: int) -> Documents:
    """The tokens from `start` to `end` as one document."""
    learnt = documents.learnt
    return Documents(
        documents.tokens[start:end],
        np.zeros(1, np.int64),
        np.array([end - start]),
        None if learnt is None else learnt[start:end],
    )


def _split_documents(
    documents: Documents, fraction: float, seq_len: int
) -> tuple[Documents, Documents]:
    """Documents spread evenly over all are held out."""
    count = max(1, round(len(documents) * fraction)) if fraction else 0
    if count >= len(documents):
        there = "1 document" if len(documents) == 1 else f"{len(documents)} documents"
        raise DataError(
            f"--data has {there}, too few to hold out {fraction:.0%}. Name others for evaluation "
            "with --held_out_data, set --held_out_fraction=0, or choose --packing=windows."
        )
    numbers = ((np.arange(count) + 0.5) * len(documents) / max(count, 1)).astype(np.int64)
    kept = np.delete(np.arange(len(documents)), numbers)
    return documents.take(kept), documents.take(numbers)


def _windows(documents: Documents, config: DataConfig, seq_len: int, counts: Counts) -> Windows:
    return Windows(documents, seq_len)


def _side_by_side(
    documents: Documents, config: DataConfig, seq_len: int, counts: Counts
) -> Windows:
    return Windows(documents, seq_len, stride=seq_len)


def _cut(documents: Documents, config: DataConfig, seq_len: int, counts: Counts) -> Pieces:
    return cut(documents, seq_len, config.long_documents, counts)


def _whole(documents: Documents, config: DataConfig, seq_len: int, counts: Counts) -> Pieces:
    return whole(documents, counts)


def _pad_pieces(pieces: Any, seq_len: int, seed: int) -> Rows:
    def pad(row: Row) -> Row:
        return {name: np.pad(array, (0, seq_len - len(array))) for name, array in row.items()}

    return pieces.map(pad)


def _first_fit(pieces: Any, seq_len: int, seed: int) -> Rows:
    names = ("tokens", "targets", "weights")
    packed = FirstFitPackIterDataset(
        pieces.to_iter_dataset(ONE_READER),
        length_struct=dict.fromkeys(names, seq_len),
        num_packing_bins=_BINS,
        seed=seed,
        meta_features=names[1:],
    )
    return packed.map(_rename_fields)


def _concat_then_split(pieces: Any, seq_len: int, seed: int) -> Rows:
    lengths = dict.fromkeys(("tokens", "targets", "weights"), seq_len)
    return ConcatThenSplitIterDataset(
        pieces.to_iter_dataset(ONE_READER), length_struct=lengths
    ).map(_rename_fields)


def _rename_fields(row: Row) -> Row:
    """Grain's names of segments and positions become those of batches."""
    return {
        "tokens": row["tokens"],
        "targets": row["targets"],
        "weights": row["weights"],
        "segments": row["tokens_segment_ids"],
        "positions": row["tokens_positions"],
    }


# The pieces are slices of memory, and the cores belong to the step.
ONE_READER = grain.ReadOptions(num_threads=1, prefetch_buffer_size=64)


def _count_side_by_side(windows: Any, seq_len: int, seed: int) -> int:
    return -(-(len(windows) + seq_len - 1) // seq_len)


def _count_by(rows: Callable[[Any, int, int], Rows]) -> Callable[[Any, int, int], int]:
    """Packs all pieces once, as in training: how much padding is left depends on their order."""

    def count(pieces: Any, seq_len: int, seed: int) -> int:
        once = grain.MapDataset.source(pieces).seed(seed).shuffle()
        return sum(1 for _ in rows(once, seq_len, seed))

    return count


PACKINGS: Mapping[str, Packing] = {
    "windows": Packing(
        False,
        _split_tokens,
        _windows,
        _side_by_side,
        lambda windows, seq_len, seed: windows,
        _count_side_by_side,
    ),
    "padded": Packing(
        True, _split_documents, _cut, _cut, _pad_pieces, lambda pieces, seq_len, seed: len(pieces)
    ),
    "first_fit": Packing(True, _split_documents, _cut, _cut, _first_fit, _count_by(_first_fit)),
    "concat_then_split": Packing(
        True, _split_documents, _whole, _whole, _concat_then_split, _count_by(_concat_then_split)
    ),
}
