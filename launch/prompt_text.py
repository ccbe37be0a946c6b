"""Tokenizers of prompts: T5's and CLIP's, from a tokenizer.json or from the vocabulary and
merges of older checkpoints."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers

from launch.errors import DataError
from launch.text import needed_tokenizer
from launch.vocabulary import SETTINGS_FILE
from launch.words import read_object, token_of

BEGIN, END = "<|startoftext|>", "<|endoftext|>"
_T5_PAD = "<pad>"


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
    tokenizer = needed_tokenizer(directory, "CLIPTokenizer")
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
    return token_of(read_object(directory / SETTINGS_FILE), "pad_token", END)
