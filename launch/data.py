"""Text, and the batches made of its tokens."""

import hashlib
import pydoc_data.topics
from pathlib import Path
from typing import Any

import grain
import numpy as np

from launch.errors import DataError
from launch.text import ByteTokenizer, Tokenizer

HELD_OUT_FRACTION = 0.08  # the end of the text, never trained on
BUILT_IN = "pydoc_data.topics"


def read_text(path: str | None) -> np.ndarray:
    """The bytes of a UTF-8 text file, or of the built-in text if `path` is None: uint8 [N].

    The built-in text is the Python language reference in the standard library, topic by topic in
    alphabetical order. Topics quote each other: a paragraph that occurs again is left out, so
    that the held-out end is text not seen in training. Raises DataError if the file cannot be
    read or is not text.
    """
    raw = _built_in_text() if path is None else _file_text(Path(path))
    return np.frombuffer(raw, np.uint8)


def _built_in_text() -> bytes:
    topics = pydoc_data.topics.topics
    text = "\n\n".join(topics[name] for name in sorted(topics))
    return "\n\n".join(dict.fromkeys(text.split("\n\n"))).encode()


def _file_text(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"cannot read --data={path}: {error.strerror}. Give the path of a readable text file."
        ) from error
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"--data={path} is not UTF-8 text: byte {raw[error.start]:#04x} at offset "
            f"{error.start}. Convert the file, for instance with iconv -t UTF-8."
        ) from error
    if b"\0" in raw:
        raise DataError(
            f"--data={path} is binary: a zero byte at offset {raw.index(0)}. Give a text file."
        )
    return raw


def fingerprint(text: np.ndarray) -> str:
    """Identifies the text or its tokens: the first 16 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(text.tobytes()).hexdigest()[:16]


def tokens_of(text: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """The text of `read_text` as tokens [N]; bytes stay as they are, uint8."""
    if isinstance(tokenizer, ByteTokenizer):
        return text
    return tokenizer.encode(text.tobytes().decode(), marks=False)


def split(text: np.ndarray, seq_len: int) -> tuple[np.ndarray, np.ndarray]:
    """(training, held-out) parts of the text, given as its tokens.

    Raises DataError if either holds no window of seq_len + 1 tokens.
    """
    held_out_size = round(len(text) * HELD_OUT_FRACTION)
    needed = int((seq_len + 1) / HELD_OUT_FRACTION) + 1
    if held_out_size < seq_len + 1:
        raise DataError(
            f"the text has {len(text)} tokens: too small for windows of --seq_len={seq_len}. "
            f"Use at least {needed} tokens of text, or a smaller --seq_len."
        )
    return text[:-held_out_size], text[-held_out_size:]


class Windows:
    """Every run of seq_len + 1 tokens of a text, by its start: a grain random-access source."""

    def __init__(self, text: np.ndarray, seq_len: int) -> None:
        self._text, self._seq_len = text, seq_len

    def __len__(self) -> int:
        return len(self._text) - self._seq_len

    def __getitem__(self, start: int) -> np.ndarray:
        return self._text[start : start + self._seq_len + 1].astype(np.int32)


def training_batches(text: np.ndarray, *, batch_size: int, seq_len: int, seed: int) -> Any:
    """An endless grain iterator over batches int32 [batch_size, seq_len + 1].

    Windows start anywhere, in an order that depends on the seed alone and is shuffled anew each
    epoch. `get_state()` is a small JSON value; `set_state` continues from there exactly.
    """
    windows = grain.MapDataset.source(Windows(text, seq_len)).seed(seed).shuffle().repeat()
    # One reader thread: the windows are slices of memory, and the cores belong to the step.
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2 * batch_size)
    return iter(windows.to_iter_dataset(options).batch(batch_size, drop_remainder=True))


def held_out_batches(
    text: np.ndarray, *, batch_size: int, seq_len: int
) -> list[tuple[np.ndarray, int]]:
    """Windows that cover the text without overlap, as (batch int32 [batch_size, seq_len + 1],
    how many of its first rows count); the last batch is filled up with zeros."""
    starts = range(0, len(text) - seq_len, seq_len)
    windows = np.stack([text[start : start + seq_len + 1] for start in starts]).astype(np.int32)
    groups = [windows[i : i + batch_size] for i in range(0, len(windows), batch_size)]
    return [(np.pad(group, ((0, batch_size - len(group)), (0, 0))), len(group)) for group in groups]
