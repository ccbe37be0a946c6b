"""Fields of a config.json, read with the checks that a file from elsewhere needs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.errors import ConfigError

CONFIG_FILE = "config.json"
DTYPES = ("float32", "bfloat16", "float16")
_REQUIRED: Any = object()


class Fields:
    """The fields of a JSON object; `where` names it in messages.

    Every reader returns `default` for a field that is missing or null, and raises ConfigError if
    there is no default or the value has another type.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def integer(self, name: str, default: Any = _REQUIRED) -> int:
        return self._read(name, default, (int,), "an integer")

    def positive(self, name: str, default: Any = _REQUIRED) -> int:
        """An integer above zero."""
        value = self.integer(name, default)
        if value is not None and value < 1:
            raise self._fault(name, value, "a positive integer")
        return value

    def number(self, name: str, default: Any = _REQUIRED) -> float:
        value = self._read(name, default, (int, float), "a number")
        return float(value) if isinstance(value, int) else value

    def flag(self, name: str, default: Any = _REQUIRED) -> bool:
        value = self._read(name, default, (bool,), "true or false")
        return bool(value)

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        return self._read(name, default, (str,), "a text")

    def list(self, name: str, default: Any = _REQUIRED) -> list[Any]:
        return self._read(name, default, (list,), "a list")

    def object(self, name: str, default: Any = _REQUIRED) -> "Fields":
        """The fields of a nested object."""
        value = self._read(name, default, (dict,), "an object")
        return Fields(value, f"{name} of {self.where}") if isinstance(value, dict) else value

    def fail(self, name: str, why: str) -> ConfigError:
        """An error about a field whose value cannot be used."""
        return ConfigError(f"{self.where} says {name}={self.values.get(name)!r}: {why}")

    def refuse(self, name: str, *allowed: Any, why: str) -> None:
        """Raises ConfigError if the field is there with another value than the allowed ones."""
        if name in self and self.values[name] not in allowed:
            raise self.fail(name, why)

    def _read(self, name: str, default: Any, types: tuple[type, ...], expected: str) -> Any:
        value = self.values.get(name)
        if value is None:
            if default is _REQUIRED:
                raise ConfigError(
                    f"{self.where} has no field {name!r}, which this architecture needs "
                    f"({expected}). Is it the config.json of another model?"
                )
            return default
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise self._fault(name, value, expected)
        return value

    def _fault(self, name: str, value: Any, expected: str) -> ConfigError:
        return ConfigError(f"{self.where} says {name}={value!r}, but {expected} is needed there")


def read_fields(path: Path) -> Fields:
    """The fields of a config.json, given as the file or its directory.

    Raises ConfigError if there is none or it is not a JSON object.
    """
    file = path / CONFIG_FILE if path.is_dir() else path
    try:
        values = json.loads(file.read_text())
    except OSError as error:
        raise ConfigError(
            f"cannot read {file}: {error.strerror}. Give the directory of a Hugging Face "
            "checkpoint or the path of its config.json."
        ) from error
    except ValueError as error:  # also of text that is not UTF-8
        raise ConfigError(f"{file} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{file} holds a {type(values).__name__}, but a JSON object is needed")
    return Fields(values, str(file))


def read_dtype(fields: Fields) -> str:
    """The dtype of the weights: `dtype` (transformers 5) or `torch_dtype` (4), else float32."""
    name = "dtype" if "dtype" in fields else "torch_dtype"
    dtype = fields.text(name, "float32").removeprefix("torch.")
    if dtype not in DTYPES:
        raise fields.fail(name, f"supported are {', '.join(DTYPES)}")
    return dtype


def count_labels(fields: Fields) -> int:
    """How many classes a classifier tells apart: `num_labels`, else those of `id2label`, else 2."""
    names = fields.object("id2label", None)
    return fields.positive("num_labels", 2 if names is None else len(names.values))


def read_pair(fields: Fields, name: str, default: int) -> tuple[int, int]:
    """Height and width: two positive integers, or one for both."""
    if not isinstance(fields.values.get(name), list):
        size = fields.positive(name, default)
        return size, size
    sizes = fields.list(name)
    if len(sizes) != 2 or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise fields.fail(name, "one or two positive integers are needed")
    return sizes[0], sizes[1]
