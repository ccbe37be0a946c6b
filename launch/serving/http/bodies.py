"""JSON from outside, checked field by field. Fields that nobody asks for are ignored, as others
do."""

import json
import math
from collections.abc import Mapping
from typing import Any

from launch.serving.errors import RequestError

LONGEST_SHOWN = 60  # characters of a value in a message


class Body:
    """The fields of a JSON object; a field that is null is one that is missing.

    Every reader raises RequestError for a value of another kind.
    """

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self.values, self._where = values, where

    @classmethod
    def parse(cls, data: bytes) -> "Body":
        """Raises RequestError for what is no JSON object."""
        try:
            values = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the body is not JSON: {error}") from error
        if b"\\u" in data:
            _check_characters(values)
        if not isinstance(values, dict):
            raise RequestError(f"the body is {_kind(values)}, but a JSON object is needed")
        return cls(values)

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def integer(self, name: str, default: Any = None) -> Any:
        """A whole number, or the default."""
        value = self._get(name, default)
        if value is not default and (isinstance(value, bool) or not isinstance(value, int)):
            raise self.fail(name, "an integer")
        return value

    def number(self, name: str, default: float) -> float:
        """A finite number."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(name, "a number")
        if not math.isfinite(value):
            raise self.fail(name, "a finite number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.fail(name, "true or false")
        return value

    def text(self, name: str, default: Any = None) -> Any:
        """A string, or the default."""
        value = self._get(name, default)
        if value is not default and not isinstance(value, str):
            raise self.fail(name, "a string")
        return value

    def texts(self, name: str, most: int) -> list[str]:
        """A string or a list of strings, none of them empty."""
        value = self._get(name, [])
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(entry, str) and entry for entry in values):
            raise self.fail(name, "a string, or a list of strings that are not empty")
        if len(values) > most:
            raise self.fail(name, f"a list of at most {most} strings")
        return values

    def list(self, name: str) -> list[Any]:
        """A list; empty if it is missing."""
        value = self._get(name, [])
        if not isinstance(value, list):
            raise self.fail(name, "a list")
        return value

    def object(self, name: str) -> "Body":
        """An object; empty if it is missing."""
        value = self._get(name, {})
        if not isinstance(value, dict):
            raise self.fail(name, "an object")
        return Body(value, f"{self._path(name)}.")

    def fail(self, name: str, wanted: str) -> RequestError:
        """An error about the value of a field."""
        value = self.values.get(name)
        shown = "missing" if value is None else json.dumps(value, default=str)[:LONGEST_SHOWN]
        return RequestError(f"{self._path(name)} is {shown}; {wanted} is needed", self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._where}{name}"

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        return default if value is None else value


def _check_characters(values: Any) -> None:
    """Raises RequestError for halves of characters, which JSON can escape but no text can hold."""
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the body has an unpaired surrogate, \\u{ord(error.object[error.start]):04x}, which "
            "is not a character"
        ) from error


def _kind(value: Any) -> str:
    kinds = {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")
