"""Texts as tokens, in memory, one after the other."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from launch.data.config import DataConfig
from launch.data.formats import FORMATS
from launch.data.readers.plain import FIELD
from launch.data.records import Counts, Record, RecordError, field_of
from launch.data.sources import Source
from launch.errors import DataError
from launch.text import Tokenizer

_TOGETHER = 1_000  # texts that the tokenizer gets at a time


@dataclass(frozen=True)
class Documents:
    """Tokens [N] of all documents, and where in it each begins and ends, int64 [D]."""

    tokens: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def of(cls, arrays: Sequence[np.ndarray]) -> "Documents":
        """Those with these tokens, [N] each of one dtype."""
        ends = np.cumsum([len(array) for array in arrays], dtype=np.int64)
        starts = np.concatenate([np.zeros(1, np.int64), ends])[:-1]
        tokens = arrays[0] if len(arrays) == 1 else np.concatenate([*arrays, np.zeros(0, np.uint8)])
        return cls(tokens, starts, ends)

    def take(self, numbers: np.ndarray) -> "Documents":
        """Those with these numbers."""
        return Documents(self.tokens, self.starts[numbers], self.ends[numbers])


def read_documents(
    sources: Sequence[Source],
    config: DataConfig,
    tokenizer: Tokenizer,
    counts: Counts,
    *,
    vocab_size: int,
    marks: bool,
) -> Documents:
    """The texts of the sources in order, as tokens. Empty ones are counted and left out.

    With `marks`, the tokens that begin or end a text are there too. Raises DataError for what
    cannot be read, unless it is to be left out.
    """
    end, dtype = _end_token(config, tokenizer), np.min_scalar_type(vocab_size - 1)
    arrays: list[np.ndarray] = []
    values = _texts(sources, config, counts)
    while batch := list(islice(values, _TOGETHER)):
        for (place, _), tokens in zip(batch, _encode(batch, tokenizer, marks), strict=True):
            if tokens.size and not 0 <= tokens.min() <= tokens.max() < vocab_size:
                raise DataError(
                    f"{place}: tokens lie between {tokens.min()} and {tokens.max()}, but the model "
                    f"has {vocab_size}. Use the tokens of the model's own tokenizer, or the text."
                )
            tokens = np.concatenate([tokens, end]) if end.size else tokens
            arrays.append(tokens.astype(dtype, copy=False))
    return Documents.of(arrays)


def _end_token(config: DataConfig, tokenizer: Tokenizer) -> np.ndarray:
    if config.document_end is None:
        return np.zeros(0, np.int32)
    number = tokenizer.token(config.document_end)
    if number is None:
        raise DataError(
            f"--document_end={config.document_end} is no token of the tokenizer, whose unit is "
            f"one {tokenizer.unit}. Name one of its special tokens."
        )
    return np.array([number], np.int32)


def _encode(
    batch: Sequence[tuple[str, Any]], tokenizer: Tokenizer, marks: bool
) -> Iterable[np.ndarray]:
    """The tokens of each value, which is a text or an array of tokens already."""
    texts = iter(
        tokenizer.encode_all([value for _, value in batch if isinstance(value, str)], marks=marks)
    )
    return [next(texts) if isinstance(value, str) else value for _, value in batch]


def _texts(
    sources: Sequence[Source], config: DataConfig, counts: Counts
) -> Iterator[tuple[str, Any]]:
    """(place, text or tokens) of all records that are not empty."""
    for source in sources:
        name = FIELD if FORMATS[source.format].whole else config.text_field
        for item in source.items([name]):
            counts.records += 1
            try:
                if isinstance(item, RecordError):
                    raise item
                value = _text(item, name)
            except RecordError:
                if config.bad_records != "skip":
                    raise
                counts.unreadable += 1
                continue
            if len(value):
                yield item.place, value
            else:
                counts.empty += 1


def _text(record: Record, name: str) -> str | np.ndarray:
    value = field_of(record, name)
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(type(token) is int for token in value):
        return np.array(value, np.int64)
    kind = type(value).__name__
    raise RecordError(
        f"{record.place}: expected a text or a list of integers in the field {name!r}, not a "
        f"{kind}. Name another field with --text_field."
    )
