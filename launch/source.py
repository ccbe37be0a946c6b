"""The source of a job's model: flags, a config.json, or a Hugging Face directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from launch.errors import ModelError
from launch.text import ByteTokenizer, Tokenizer, find_tokenizer
from models.decoder.config import DecoderConfig
from models.decoder.families import llama_json
from models.pretrained import Described, describe, describe_fields
from models.weights.fields import Fields

TASK = "text-generation"


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
