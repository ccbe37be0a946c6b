"""Converts between text and tokens: bytes, or a checkpoint's tokenizer."""

import codecs
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import tokenizers
from tokenizers.decoders import DecodeStream

from launch.errors import DataError
from launch.vocabulary import ADDED_FILE, FILES, MARKS_FILE, SETTINGS_FILE, read_vocabulary
from models.weights.fields import GENERATION_FILE

TOKENIZER_FILE = "tokenizer.json"
COMPANIONS = (
    TOKENIZER_FILE,
    SETTINGS_FILE,
    MARKS_FILE,
    ADDED_FILE,
    *FILES,
    "chat_template.jinja",
    "preprocessor_config.json",
    "processor_config.json",
    GENERATION_FILE,
)
"""Files that belong to a model besides its config and weights."""


class Tokenizer(Protocol):
    """The interface that programs use of a tokenizer."""

    unit: str  # what one token is called in messages
    size: int  # tokens lie below it

    def encode(self, text: str, *, marks: bool) -> np.ndarray:
        """The tokens of a text, int32 [N]; with `marks`, including those that begin or end a
        text."""

    def encode_all(self, texts: Sequence[str], *, marks: bool) -> list[np.ndarray]:
        """The tokens of each text, [N], as from `encode`, in some integer dtype."""

    def spans(self, text: str, other: str | None = None, *, marks: bool) -> "Spans":
        """The tokens of a text, or of a pair of texts, and the characters of each."""

    def token(self, text: str) -> int | None:
        """The ID of a token such as "<|endoftext|>"; None if there is none."""

    def stream(self, *, skip_special_tokens: bool = True) -> "TextStream":
        """A stream that turns tokens into text as they come."""


class Spans(NamedTuple):
    """Tokens and the characters that each covers."""

    tokens: np.ndarray  # int32 [N]
    begins: np.ndarray  # int32 [N], its first character
    ends: np.ndarray  # int32 [N], after its last; where it begins, for a mark
    parts: np.ndarray  # int32 [N], 0 or 1: which text it belongs to; -1 for a mark
    types: np.ndarray  # int32 [N]: what models that tell the two texts apart are told


class TextStream(Protocol):
    """A text whose tokens come in pieces, which may end within a character."""

    def feed(self, tokens: Iterable[int]) -> str:
        """The text that the next tokens [n] complete."""

    def finish(self) -> str:
        """The remaining text when no more tokens come."""


class ByteTokenizer:
    """A tokenizer with one token per UTF-8 byte."""

    unit, size = "byte", 256

    def encode(self, text: str, *, marks: bool) -> np.ndarray:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def encode_all(self, texts: Sequence[str], *, marks: bool) -> list[np.ndarray]:
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]

    def spans(self, text: str, other: str | None = None, *, marks: bool) -> Spans:
        parts = [text] if other is None else [text, other]
        begins = [
            np.repeat(np.arange(len(part)), [len(letter.encode()) for letter in part])
            for part in parts
        ]
        first = np.concatenate(begins).astype(np.int32)
        numbers = np.repeat(np.arange(len(parts)), [len(part) for part in begins])
        tokens = np.concatenate([self.encode(part, marks=False) for part in parts])
        kinds = numbers.astype(np.int32)
        return Spans(tokens, first, first + 1, kinds, kinds)

    def token(self, text: str) -> int | None:
        return None

    def stream(self, *, skip_special_tokens: bool = True) -> TextStream:
        return _ByteStream()


class _ByteStream:
    def __init__(self) -> None:
        self._held = b""  # the beginning of a character

    def feed(self, tokens: Iterable[int]) -> str:
        data = self._held + bytes([token & 0xFF for token in tokens])
        text, length = codecs.utf_8_decode(data, "replace", False)
        self._held = data[length:]
        return text

    def finish(self) -> str:
        held, self._held = self._held, b""
        return held.decode(errors="replace")


def open_tokenizer(file: Path) -> tokenizers.Tokenizer:
    """The tokenizer of a tokenizer.json. Raises DataError if the file cannot be used."""
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more precise
        raise DataError(f"{file} cannot be used as a tokenizer: {error}") from error


def read_tokenizer(directory: Path, otherwise: str | None = None) -> tokenizers.Tokenizer | None:
    """The tokenizer from a directory's tokenizer.json, or else from its vocabulary; None if it has
    none. `otherwise` is the tokenizer's class where the directory names none.

    Raises DataError if the files cannot be used.
    """
    file = directory / TOKENIZER_FILE
    return open_tokenizer(file) if file.is_file() else read_vocabulary(directory, otherwise)


def needed_tokenizer(directory: Path, otherwise: str | None = None) -> tokenizers.Tokenizer:
    """The tokenizer that `read_tokenizer` finds. Raises DataError if there is none."""
    tokenizer = read_tokenizer(directory, otherwise)
    if tokenizer is None:
        raise DataError(
            f"{directory} holds no {TOKENIZER_FILE}. Put the model's {TOKENIZER_FILE} there."
        )
    return tokenizer


class FileTokenizer:
    """A tokenizer, given itself or as a tokenizer.json. Raises DataError if it cannot be used."""

    unit = "token"

    def __init__(self, source: Path | tokenizers.Tokenizer) -> None:
        self._tokenizer = open_tokenizer(source) if isinstance(source, Path) else source
        # Files of encoders ask for both; a text is encoded whole.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.size = self._tokenizer.get_vocab_size()

    def encode(self, text: str, *, marks: bool) -> np.ndarray:
        return np.array(self._tokenizer.encode(text, add_special_tokens=marks).ids, np.int32)

    def encode_all(self, texts: Sequence[str], *, marks: bool) -> list[np.ndarray]:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=marks)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def spans(self, text: str, other: str | None = None, *, marks: bool) -> Spans:
        encoding = self._tokenizer.encode(text, other, add_special_tokens=marks)
        begins, ends = np.array(encoding.offsets, np.int32).reshape(-1, 2).T
        parts = [-1 if part is None else part for part in encoding.sequence_ids]
        tokens, kinds = np.array(encoding.ids, np.int32), np.array(encoding.type_ids, np.int32)
        return Spans(tokens, begins, ends, np.array(parts, np.int32), kinds)

    def token(self, text: str) -> int | None:
        number: int | None = self._tokenizer.token_to_id(text)
        return number

    def stream(self, *, skip_special_tokens: bool = True) -> TextStream:
        return _FileStream(self._tokenizer, skip_special_tokens)


class _FileStream:
    def __init__(self, tokenizer: tokenizers.Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer, self._skips = tokenizer, skip_special_tokens
        self._stream = DecodeStream(skip_special_tokens=skip_special_tokens)
        self._told: list[int] = []  # the tokens of the last piece, …
        self._held: list[int] = []  # … and those after it, which end within a character

    def feed(self, tokens: Iterable[int]) -> str:
        return "".join(map(self._step, tokens))

    def finish(self) -> str:
        before, whole = (
            self._tokenizer.decode(ids, skip_special_tokens=self._skips)
            for ids in (self._told, self._told + self._held)
        )
        self._held = []
        return str(whole[len(before) :])

    def _step(self, token: int) -> str:
        piece = self._stream.step(self._tokenizer, int(token))
        self._held.append(int(token))
        if piece:
            self._told, self._held = self._held, []
        return piece or ""


def find_tokenizer(directory: Path, vocab_size: int) -> Tokenizer:
    """The tokenizer in the directory; bytes if there is none and the vocabulary is large enough.

    Raises DataError if the vocabulary is smaller than the tokenizer's.
    """
    stored = read_tokenizer(directory)
    tokenizer: Tokenizer = ByteTokenizer() if stored is None else FileTokenizer(stored)
    if tokenizer.size > vocab_size:
        missing = f"{directory} holds no {TOKENIZER_FILE}, and " if stored is None else ""
        raise DataError(
            f"{missing}{'one token per byte' if stored is None else 'its tokenizer'} needs "
            f"{tokenizer.size} tokens, but the model's vocabulary has {vocab_size}. Put the "
            f"{TOKENIZER_FILE} that belongs to the model into its directory."
        )
    return tokenizer


def copy_companions(source: Path | None, target: Path) -> None:
    """Copies the files of the tokenizer and of the preprocessing, the chat template and the
    generation settings from one directory to another, except for those that are already there."""
    if source is None:
        return
    for name in COMPANIONS:
        if (source / name).is_file() and not (target / name).exists():
            shutil.copyfile(source / name, target / name)
