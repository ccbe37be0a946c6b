"""Tokenizers of prompts: T5's and CLIP's, from a tokenizer.json or from the vocabulary and
merges of older checkpoints."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import RobertaProcessing

from launch.errors import DataError
from launch.text import TOKENIZER_FILE, needed_tokenizer, open_tokenizer

VOCABULARY_FILE, MERGES_FILE = "vocab.json", "merges.txt"
SETTINGS_FILE = "tokenizer_config.json"
BEGIN, END = "<|startoftext|>", "<|endoftext|>"
_T5_PAD = "<pad>"
_WORD_END = "</w>"  # after the last piece of a word
_WORDS = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)


class PromptText(NamedTuple):
    """A tokenizer and its padding token."""

    tokenizer: tokenizers.Tokenizer
    pad: int

    def rows(self, texts: Sequence[str], length: int) -> np.ndarray:
        """Tokens int32 [B, length] of texts; longer ones are truncated, but keep the end token."""
        return self.padded(texts, length)[0]

    def padded(self, texts: Sequence[str], length: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens as in `rows`, and a mask, bool [B, length], which is False at padding."""
        tokens = np.full((len(texts), length), self.pad, np.int32)
        real = np.zeros((len(texts), length), bool)
        for row, is_real, text in zip(tokens, real, texts, strict=True):
            ids = self.tokenizer.encode(text).ids
            row[: len(ids)] = ids if len(ids) <= length else [*ids[: length - 1], ids[-1]]
            is_real[: len(ids)] = True
        return tokens, real


def open_t5_text(directory: Path) -> PromptText:
    """The T5 tokenizer in a directory. Raises DataError if its files cannot be used."""
    tokenizer = needed_tokenizer(directory)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    pad = tokenizer.token_to_id(_T5_PAD)
    if pad is None:
        raise DataError(
            f"the tokenizer of {directory} lacks the token {_T5_PAD}, so it is not T5's"
        )
    return PromptText(tokenizer, pad)


def open_clip_text(directory: Path) -> PromptText:
    """The CLIP tokenizer in a directory. Raises DataError if its files cannot be used."""
    file = directory / TOKENIZER_FILE
    tokenizer = open_tokenizer(file) if file.is_file() else _from_vocabulary(directory)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    name = _pad_name(directory)
    pad = tokenizer.token_to_id(name)
    if pad is None or tokenizer.token_to_id(END) is None:
        raise DataError(
            f"the tokenizer of {directory} lacks the token {END if pad is not None else name!r}, "
            "so it is not CLIP's"
        )
    return PromptText(tokenizer, pad)


def _pad_name(directory: Path) -> str:
    """The padding token of tokenizer_config.json, as a text or as an object with its text."""
    file = directory / SETTINGS_FILE
    settings = _read(file) if file.is_file() else {}
    pad = settings.get("pad_token", END)
    return str(pad.get("content", END) if isinstance(pad, dict) else pad)


def _from_vocabulary(directory: Path) -> tokenizers.Tokenizer:
    vocabulary = _read(directory / VOCABULARY_FILE)
    try:
        lines = (directory / MERGES_FILE).read_text(encoding="utf-8").splitlines()
        merges = [_pair(line) for line in lines if line and not line.startswith("#version")]
        tokenizer = tokenizers.Tokenizer(
            BPE(vocabulary, merges, end_of_word_suffix=_WORD_END, unk_token=END)
        )
        ends = (END, vocabulary[END]), (BEGIN, vocabulary[BEGIN])
    except Exception as error:  # the library raises nothing more precise
        raise DataError(
            f"{directory} holds neither {TOKENIZER_FILE} nor CLIP's {VOCABULARY_FILE} and "
            f"{MERGES_FILE}: {error}"
        ) from error
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.post_processor = RobertaProcessing(*ends, add_prefix_space=False, trim_offsets=False)
    return tokenizer


def _pair(line: str) -> tuple[str, str]:
    first, second = line.split()
    return first, second


def _read(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise DataError(f"{file} is not a JSON object")
    return values
