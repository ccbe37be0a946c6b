"""Texts as tokens, in memory, one after another."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from launch.data.config import DataConfig
from launch.data.formats import FORMATS
from launch.data.readers.plain import FIELD
from launch.data.records import Counts, Record, RecordError, field_of, read_values, shortened
from launch.data.sources import Source
from launch.errors import DataError
from launch.text import Tokenizer

_TOGETHER = 1_000  # texts that the tokenizer gets at a time


Learnt = tuple[np.ndarray, np.ndarray]  # tokens, int [N], and which are to be predicted, bool [N]
Reader = Callable[[Record], Learnt]  # raises RecordError


@dataclass(frozen=True)
class Documents:
    """The tokens [N] of all documents, and where each begins and ends in it, int64 [D]."""

    tokens: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    learnt: np.ndarray | None = None  # bool [N]: which tokens are to be predicted; None = all

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def of(
        cls, arrays: Sequence[np.ndarray], learnt: Sequence[np.ndarray] | None = None
    ) -> "Documents":
        """Documents with these tokens, [N] each, of one dtype."""
        ends = np.cumsum([len(array) for array in arrays], dtype=np.int64)
        starts = np.concatenate([np.zeros(1, np.int64), ends])[:-1]
        counted = None if learnt is None else _concatenate(learnt, bool)
        return cls(_concatenate(arrays, np.uint8), starts, ends, counted)

    def take(self, numbers: np.ndarray) -> "Documents":
        """The documents with these numbers."""
        return replace(self, starts=self.starts[numbers], ends=self.ends[numbers])


def _concatenate(arrays: Sequence[np.ndarray], dtype: Any) -> np.ndarray:
    """The concatenation of arrays [N]; an empty array of that dtype if there are none."""
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype)


def read_documents(
    sources: Sequence[Source],
    config: DataConfig,
    tokenizer: Tokenizer,
    counts: Counts,
    *,
    vocab_size: int,
    marks: bool,
    reader: Reader | None = None,
) -> Documents:
    """The texts of the sources in order, as tokens. Empty ones are counted and left out.

    With `marks`, tokens that begin or end a text are included. A `reader` turns whole records into
    tokens, instead of the text in one field. Raises DataError for what cannot be read, unless it
    is to be left out.
    """
    end, dtype = _end_token(config, tokenizer), np.min_scalar_type(vocab_size - 1)
    arrays: list[np.ndarray] = []
    learnt: list[np.ndarray] = []
    values = _values(sources, config, counts, reader)
    while batch := list(islice(values, _TOGETHER)):
        coded = _encode([value for _, value in batch], tokenizer, marks, end)
        for (place, _), (tokens, counted) in zip(batch, coded, strict=True):
            if tokens.size and not 0 <= tokens.min() <= tokens.max() < vocab_size:
                raise DataError(
                    f"{place}: the token IDs range from {tokens.min()} to {tokens.max()}, but the "
                    f"model's vocabulary has {vocab_size} tokens. Use token IDs from the model's "
                    "own tokenizer, or the text."
                )
            arrays.append(tokens.astype(dtype, copy=False))
            if counted is not None:
                learnt.append(counted)
    return Documents.of(arrays, learnt if reader else None)


def _end_token(config: DataConfig, tokenizer: Tokenizer) -> np.ndarray:
    if config.document_end is None:
        return np.zeros(0, np.int32)
    number = tokenizer.token(config.document_end)
    if number is None:
        raise DataError(
            f"--document_end={config.document_end} is not a single token of the tokenizer, which "
            f"splits text into {tokenizer.unit}s. Name one of its special tokens."
        )
    return np.array([number], np.int32)


def _encode(
    values: Sequence[Any], tokenizer: Tokenizer, marks: bool, end: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """(tokens, which are to be predicted) of each: a text, an array of tokens, or both already."""
    texts = [value for value in values if isinstance(value, str)]
    coded = iter(tokenizer.encode_all(texts, marks=marks))
    for value in values:
        if isinstance(value, tuple):
            yield value
            continue
        tokens = next(coded) if isinstance(value, str) else value
        yield (np.concatenate([tokens, end]) if end.size else tokens), None


def _values(
    sources: Sequence[Source], config: DataConfig, counts: Counts, reader: Reader | None
) -> Iterator[tuple[str, Any]]:
    """(place, what `_encode` takes) of all records that are not empty."""
    for source in sources:
        name = FIELD if FORMATS[source.format].whole else config.text_field
        read: Callable[[Record], Any] = reader or partial(_text, name=name)
        items = source.items(None if reader else [name])
        skip = config.bad_records == "skip"
        for place, value in read_values(items, read, skip=skip, counts=counts):
            if len(value):
                yield place, value
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
    raise RecordError(
        f"{record.place}: expected a string or a list of integers in the field {name!r}, not "
        f"{shortened(value)}. Name another field with --text_field."
    )
