"""Fields of a config.json, read with the checks that a file from elsewhere needs."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.errors import ConfigError
from models.published.defaults import Defaults
from models.weights.wrong_directories import held_instead

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
PREPROCESSOR_FILE = "preprocessor_config.json"
PROCESSOR_FILE = "processor_config.json"  # of transformers 5: several processors in one file
DTYPES = ("float32", "bfloat16", "float16")
LONGEST = 200  # letters of a value in a message
_REQUIRED: Any = object()
_NOTHING = Defaults()


class Fields:
    """The fields of a JSON object; `where` names it in messages.

    Every reader returns `default` for a field that is missing or null, and raises ConfigError if
    there is no default or the value has another type.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        where: str,
        known: Defaults = _NOTHING,
    ) -> None:
        self.values, self.where = values, where
        self._defaults, self._names = known.config, known.names

    def of_family(self, known: Defaults) -> "Fields":
        """The fields as a family of models reads them, which knows these defaults."""
        return Fields(self.values, self.where, known)

    def knows(self, name: str) -> bool:
        """Whether the family knows a field of this name."""
        return name in self._defaults

    def __contains__(self, name: str) -> bool:
        return self.values.get(self._spelling_of(name)) is not None

    def integer(self, name: str, default: Any = _REQUIRED) -> int:
        return self._read(name, default, (int,), "an integer")

    def positive(self, name: str, default: Any = _REQUIRED) -> int:
        """The integer above zero in a field."""
        value = self.integer(name, default)
        if value is not None and value < 1:
            raise self._fault(name, value, "a positive integer")
        return value

    def number(self, name: str, default: Any = _REQUIRED) -> float:
        value = self._read(name, default, (int, float), "a number")
        if isinstance(value, int):
            if abs(value) >= 2**1023:
                raise self._fault(name, value, "a number within the range of FP64")
            return float(value)
        return value

    def positive_number(self, name: str, default: Any = _REQUIRED) -> float:
        """A finite number above zero."""
        value = self.number(name, default)
        if value is not None and not 0 < value < math.inf:
            raise self._fault(name, value, "a positive number")
        return value

    def flag(self, name: str, default: Any = _REQUIRED) -> bool:
        value = self._read(name, default, (bool,), "true or false")
        return bool(value)

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        return self._read(name, default, (str,), "a text")

    def list(self, name: str, default: Any = _REQUIRED) -> list[Any]:
        return self._read(name, default, (list,), "a list")

    def texts(self, name: str, default: Any = _REQUIRED) -> tuple[str, ...]:
        """The texts of a list in a field."""
        return self._tuple(name, default, str, "a list of texts")

    def integers(self, name: str, default: Any = _REQUIRED) -> tuple[int, ...]:
        """The integers of a list in a field."""
        return self._tuple(name, default, int, "a list of integers")

    def flags(self, name: str, default: Any = _REQUIRED) -> tuple[bool, ...]:
        """A list of true and false."""
        return self._tuple(name, default, bool, "a list of booleans")

    def positive_numbers(self, name: str, default: Any = _REQUIRED) -> tuple[float, ...]:
        """A list of finite numbers above zero."""
        values = self.list(name, default)
        if values is None:
            return values
        if not all(type(value) in (int, float) and 0 < value < math.inf for value in values):
            raise self._fault(name, values, "a list of positive numbers")
        return tuple(map(float, values))

    def pair(self, name: str, default: Any = _REQUIRED) -> Any:
        """Height and width: two positive integers, or one for both."""
        value = self._get(name)
        if value is None and default is not _REQUIRED:
            return default if default is None or isinstance(default, tuple) else (default, default)
        if not isinstance(value, list):
            size = self.positive(name)
            return size, size
        if len(value) != 2 or not all(type(size) is int and size > 0 for size in value):
            raise self.fail(name, "it must be one or two positive integers")
        return value[0], value[1]

    def object(self, name: str, default: Any = _REQUIRED) -> "Fields":
        """The fields of a nested object."""
        value = self._read(name, default, (dict,), "an object")
        return Fields(value, f"{name} of {self.where}") if isinstance(value, dict) else value

    def fail(self, name: str, why: str) -> ConfigError:
        """An error about a field whose value cannot be used."""
        return ConfigError(
            f"{self.where} has {self._spelling_of(name)}={_short(self._get(name))}: {why}"
        )

    def refuse(self, name: str, *allowed: Any, why: str) -> None:
        """Raises ConfigError if the field is there with another value than the allowed ones."""
        if name in self and self._get(name) not in allowed:
            raise self.fail(name, why)

    def refuse_others(self, known: Defaults) -> None:
        """Raises ConfigError if a field is there with another value than its fixed one."""
        for name, value in known.fixed.items():
            why = known.reasons.get(name, f"only {value} is supported")
            self.refuse(name, value, why=why)

    def _tuple(self, name: str, default: Any, kind: type, expected: str) -> tuple[Any, ...]:
        values = self.list(name, default)
        if values is not None and not all(type(value) is kind for value in values):
            raise self._fault(name, values, expected)
        return values if values is None else tuple(values)

    def _read(self, name: str, default: Any, types: tuple[type, ...], expected: str) -> Any:
        value = self._get(name)
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
        return ConfigError(
            f"{self.where} has {self._spelling_of(name)}={_short(value)}, but it must be {expected}"
        )

    def _spelling_of(self, name: str) -> str:
        """The name by which the file has a field: the family's own, unless only the other is
        there."""
        own = self._names.get(name, name)
        return name if own not in self.values and name in self.values else own

    def _get(self, name: str) -> Any:
        spelled = self._spelling_of(name)
        return self.values[spelled] if spelled in self.values else self._defaults.get(name)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def read_fields(path: Path) -> Fields:
    """The fields of a config.json, given as the file or its directory.

    Raises ConfigError if there is none or it is not a JSON object.
    """
    file = path / CONFIG_FILE if path.is_dir() else path
    try:
        values = json.loads(file.read_text())
    except OSError as error:
        instead = held_instead(path) if path.is_dir() else None
        if instead is not None:
            raise ConfigError(instead) from error
        raise ConfigError(
            f"cannot read {file}: {error.strerror}. Give the directory of a Hugging Face "
            "checkpoint or the path of its config.json."
        ) from error
    except (ValueError, RecursionError) as error:  # also of text that is not UTF-8
        raise ConfigError(f"{file} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{file} holds a {type(values).__name__}, but it must be a JSON object")
    return Fields(values, str(file))


def has_processor(directory: Path) -> bool:
    """Whether a directory says how images or sounds are prepared."""
    return any((directory / name).is_file() for name in (PREPROCESSOR_FILE, PROCESSOR_FILE))


def read_processor(directory: Path, part: str) -> Fields:
    """The fields of a checkpoint's preprocessor_config.json, or, where there is none, of the part
    of processor_config.json: "image_processor" or "feature_extractor".

    Raises ConfigError as `read_fields` does.
    """
    file, several = directory / PREPROCESSOR_FILE, directory / PROCESSOR_FILE
    if not file.is_file() and several.is_file():
        return read_fields(several).object(part)
    return read_fields(file)


def read_dtype(fields: Fields) -> str:
    """The dtype of the weights: `dtype` (transformers 5) or `torch_dtype` (4), else float32."""
    name = "dtype" if "dtype" in fields else "torch_dtype"
    dtype = fields.text(name, "float32").removeprefix("torch.")
    if dtype not in DTYPES:
        raise fields.fail(name, f"choose one of {', '.join(DTYPES)}")
    return dtype


def count_labels(fields: Fields) -> int:
    """How many classes a classifier tells apart: `num_labels`, else those of `id2label`, else 2."""
    names = fields.object("id2label", None)
    return fields.positive("num_labels", 2 if names is None else len(names.values))
