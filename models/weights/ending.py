"""The tokens that end generated text, from the files of a checkpoint."""

import json
from pathlib import Path
from typing import Any

from models.errors import ConfigError
from models.generate import Ending
from models.weights.fields import GENERATION_FILE, Fields


def read_ending(directory: Path, fields: Fields) -> Ending:
    """The stop tokens and the padding token of generation_config.json, else of config.json; rows
    are filled with the first stop token if no padding is named.

    Raises ConfigError if the file is not a JSON object or has no token numbers there.
    """
    places = [*_generation_fields(directory / GENERATION_FILE), fields]
    stops = next((place for place in places if "eos_token_id" in place), None)
    pads = next((place for place in places if "pad_token_id" in place), None)
    stop_tokens = () if stops is None else _tokens(stops, "eos_token_id")
    fill = next(iter(stop_tokens), 0)
    return Ending(stop_tokens, fill if pads is None else pads.integer("pad_token_id"))


def _generation_fields(file: Path) -> list[Fields]:
    if not file.is_file():
        return []
    try:
        values: Any = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{file} holds a {type(values).__name__}, but a JSON object is needed")
    return [Fields(values, str(file))]


def _tokens(fields: Fields, name: str) -> tuple[int, ...]:
    """One number or a list of them."""
    value = fields.values[name]
    numbers = value if isinstance(value, list) else [value]
    if not all(isinstance(number, int) for number in numbers):
        raise fields.fail(name, "a token number or a list of them is needed")
    return tuple(numbers)
