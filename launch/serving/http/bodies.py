"""JSON from outside, checked field by field. A field that nobody reads is refused, because who
sends it expects it to change the answer."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from launch.serving.errors import RequestError

LONGEST_SHOWN = 60  # characters of a value in a message

BESIDE_THE_ANSWER = frozenset(
    {
        "include_obfuscation",
        "metadata",
        "prediction",
        "prompt_cache_key",
        "safety_identifier",
        "service_tier",
        "user",
    }
)
"""Fields of OpenAI's bodies about the sender, or the speed, of what is asked."""
USUAL: Mapping[str, Any] = {
    "length_penalty": 1.0,
    "modalities": ["text"],
    "parallel_tool_calls": True,
    "spaces_between_special_tokens": True,
}
"""Values that ask for what happens anyway, by field; of other fields, empty ones and false do."""
INSTEAD: Mapping[str, str] = {
    "best_of": "leave it out, or give n's value",
    "chat_template": "start the server with --chat_template",
    "function_call": "give tools and tool_choice",
    "functions": "give tools and tool_choice",
    "logits_processors": "give logit_bias or structured_outputs",
    "prompt_embeds": "give the prompt as text or tokens",
    "store": "answers are not kept",
    "use_beam_search": "answers are drawn token by token",
}
"""What to do where a field is not supported."""


class Body:
    """The fields of a JSON object; a field that is null is one that is missing.

    Every reader raises RequestError for a value of another kind, and remembers the field:
    `check_all_read` refuses those that are left.
    """

    def __init__(self, values: Mapping[str, Any], where: str = "", client: str = "") -> None:
        """`client`: who sends it."""
        self._values, self._where, self.client = values, where, client
        self._read: set[str] = set()
        self._inner: list[Body] = []

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
        return self.value(name) is not None

    def value(self, name: str) -> Any:
        """JSON of any kind; None if it is missing."""
        self._read.add(name)
        return self._values.get(name)

    def all(self) -> Mapping[str, Any]:
        """Every field as it is, for an object whose names are the sender's own."""
        self._read.update(self._values)
        return self._values

    def check_all_read(self) -> None:
        """Raises RequestError for a field that no reader has asked for, here or in an object that
        was read, unless it says nothing of the answer or asks for what happens anyway."""
        for name, value in self._values.items():
            if not (name in self._read or name in BESIDE_THE_ANSWER or _asks_nothing(name, value)):
                instead = INSTEAD.get(name, "leave it out")
                raise RequestError(
                    f"{self._path(name)} is not supported: {instead}", self._path(name)
                )
        for inner in self._inner:
            inner.check_all_read()

    def integer(self, name: str, default: Any = None) -> Any:
        """A whole number, or the default."""
        value = self._get(name, default)
        if value is not default and (isinstance(value, bool) or not isinstance(value, int)):
            raise self.fail(name, "an integer")
        return value

    def number(self, name: str, default: float) -> float:
        """The finite number in a field, or the default."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(name, "a number")
        if not math.isfinite(value):
            raise self.fail(name, "a finite number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """The truth value in a field, or the default."""
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
        return self.derive(value, f"{self._path(name)}.")

    def objects(self, name: str) -> "Sequence[Body]":
        """A list of objects; empty if it is missing."""
        values = self.list(name)
        if not all(isinstance(value, dict) for value in values):
            raise self.fail(name, "a list of objects")
        where = self._path(name)
        return [self.derive(value, f"{where}[{index}].") for index, value in enumerate(values)]

    def derive(self, values: Mapping[str, Any], where: str = "") -> "Body":
        """A body of other fields, which must all be read as well."""
        inner = Body(values, where, self.client)
        self._inner.append(inner)
        return inner

    def fail(self, name: str, wanted: str) -> RequestError:
        """An error about the value of a field."""
        value = self._values.get(name)
        shown = "missing" if value is None else json.dumps(value, default=str)[:LONGEST_SHOWN]
        return RequestError(f"{self._path(name)} is {shown}; {wanted} is needed", self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._where}{name}"

    def _get(self, name: str, default: Any) -> Any:
        value = self.value(name)
        return default if value is None else value


def _asks_nothing(name: str, value: Any) -> bool:
    if name in USUAL:
        return value is None or value == USUAL[name]
    return value is None or value is False or value in ([], {}, "")


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
