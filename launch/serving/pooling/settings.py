"""How a model's vectors of tokens become that of the text, as sentence-transformers writes it down.

Layout: sbert.net, "Creating Custom Models": modules.json lists modules and their folders.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.errors import DataError

MODULES_FILE, TEXT_FILE = "modules.json", "sentence_bert_config.json"
FIRST, MEAN, LAST = "cls", "mean", "last"
POOLINGS = (FIRST, MEAN, LAST)

# The fields of a Pooling module's config.json.
_MODES: Mapping[str, str] = {
    "pooling_mode_cls_token": FIRST,
    "pooling_mode_mean_tokens": MEAN,
    "pooling_mode_lasttoken": LAST,
}


@dataclass(frozen=True)
class PoolingSettings:
    """What becomes of vectors [T, D] of tokens."""

    pooling: str  # of POOLINGS: the vector of the first token, their mean, that of the last token
    normalised: bool = True  # to length 1
    longest: int | None = None  # text, in tokens; None = the model's context


def read_pooling(directory: Path, default: str) -> PoolingSettings:
    """Those of a directory's modules.json, or `default` if there is none.

    Raises DataError for files that cannot be read, and for modules that change vectors in another
    way.
    """
    file = directory / MODULES_FILE
    if not file.is_file():
        return PoolingSettings(default)
    pooling, normalised = default, False
    for module in _read(file, list):
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "Pooling":
            pooling = _mode(directory / str(module.get("path", "")) / "config.json")
        elif kind == "Normalize":
            normalised = True
        elif kind != "Transformer":
            raise DataError(
                f"{file} has a module {kind!r}, which is not supported; there are Transformer, "
                "Pooling and Normalize"
            )
    longest = None
    if (directory / TEXT_FILE).is_file():
        longest = _read(directory / TEXT_FILE, dict).get("max_seq_length")
    return PoolingSettings(pooling, normalised, longest)


def _mode(file: Path) -> str:
    fields = _read(file, dict)
    named = fields.get("pooling_mode")
    modes = [mode for name, mode in _MODES.items() if fields.get(name)]
    modes += [named] if named in POOLINGS else []
    others = [name for name in fields if name.startswith("pooling_mode_") and fields[name] is True]
    if len(modes) != 1 or len(others) > 1:
        raise DataError(
            f"{file} asks for {', '.join(others) or named}; one of {', '.join(POOLINGS)} is "
            "supported"
        )
    return str(modes[0])


def _read(file: Path, kind: type) -> Any:
    try:
        values = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    if not isinstance(values, kind):
        raise DataError(f"{file} holds a {type(values).__name__}, but a {kind.__name__} is needed")
    return values
