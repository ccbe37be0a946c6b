"""The source of a job's model: flags, a config.json, or a Hugging Face directory."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from launch.errors import DataError, ModelError
from launch.text import (
    TOKENIZER_FILE,
    ByteTokenizer,
    FileTokenizer,
    Tokenizer,
    find_tokenizer,
    needed_tokenizer,
)
from models.decoder.config import DecoderConfig
from models.decoder.families import llama_json
from models.pretrained import Described, describe, describe_fields
from models.weights.fields import Fields

TASK = "text-generation"
_ROWS = 128


class Source(NamedTuple):
    """A language model and its tokenizer."""

    model: Described
    tokenizer: Tokenizer
    weights: Path | None  # the directory that the weights come from; None = random ones
    files: Path | None  # the directory with the tokenizer.json, if there is one


def byte_level(config: DecoderConfig) -> Source:
    """A byte-level Llama with these dimensions."""
    fields = Fields(llama_json(config), "the flags")
    return Source(describe_fields(fields, dtype=config.dtype), ByteTokenizer(), None, None)


def with_tokenizer(source: Source, directory: Path) -> Source:
    """The model with the tokenizer in the directory. Raises DataError if it does not suit."""
    needed_tokenizer(directory)
    tokenizer = find_tokenizer(directory, source.model.config.vocab_size)
    return source._replace(tokenizer=tokenizer, files=directory)


def tokenizer_directory(text: str) -> Path:
    """The directory that --tokenizer names, by itself or by its tokenizer.json. Raises DataError
    for anything else."""
    path = Path(text)
    if path.is_file() and path.name == TOKENIZER_FILE:
        return path.parent
    if path.is_dir():
        return path
    raise DataError(
        f"--tokenizer={text} is neither a directory nor a file called {TOKENIZER_FILE}. Give the "
        f"directory of a model, or one with a {TOKENIZER_FILE}."
    )


def vocabulary_for(directory: Path) -> int:
    """Tokens of a vocabulary for the tokenizer in the directory: a multiple of _ROWS, so that cores
    can share it. Raises DataError if there is no tokenizer."""
    size = FileTokenizer(needed_tokenizer(directory)).size
    return math.ceil(size / _ROWS) * _ROWS


def from_fields(fields: Mapping[str, Any], origin: str) -> Source:
    """A byte-level model with random weights, from the fields of a config.json.

    Raises ConfigError if they cannot be used; `origin` says where they come from.
    """
    return Source(describe_fields(Fields(dict(fields), origin)), ByteTokenizer(), None, None)


def from_path(path: Path, *, dtype: str | None = None, param_dtype: str | None = None) -> Source:
    """The checkpoint in a directory, or a model with random weights for a config.json.

    `dtype` and `param_dtype` as in `models.pretrained.describe`. Raises ModelError if it is not a
    language model; ConfigError and DataError for files that cannot be used.
    """
    model = describe(path, dtype=dtype, param_dtype=param_dtype)
    if model.architecture.task != TASK:
        raise ModelError(
            f"--model={path} is {model.architecture.name}, made for {model.architecture.task}, "
            f"but this program needs a model for {TASK}"
        )
    files = path if path.is_dir() else path.parent
    tokenizer = find_tokenizer(files, model.config.vocab_size)
    return Source(model, tokenizer, path if path.is_dir() else None, files)
