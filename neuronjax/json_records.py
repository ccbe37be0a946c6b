"""Records read back from what `dataclasses.asdict` and JSON made of them."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

_T = TypeVar("_T")


def read_record(kind: type[_T], given: Mapping[str, Any]) -> _T:
    """Returns a dataclass whose fields, of whatever records and tuples, were written as JSON.

    Lists become the tuples and named tuples, and objects the dataclasses, that fields declare.
    TypeError, KeyError: something else was written.
    """
    record: Any = kind
    read = _reader(record) or record
    return typing.cast(_T, read(given))


@functools.cache
def _reader(kind: Any) -> Any:
    """What makes a value of an annotated type from JSON; None: JSON has it as it is."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        readers = [_reader(entry) for entry in inner if entry is not Ellipsis]
        if not any(readers):
            return tuple
        if inner[-1] is Ellipsis:
            return lambda given: tuple(map(readers[0], given))
        return lambda given: tuple(_read(readers, given))
    if origin is not None and issubclass(origin, Mapping):
        read = _reader(inner[1])
        return read and (lambda given: {key: read(value) for key, value in given.items()})
    if origin is types.UnionType:
        read = next(filter(None, map(_reader, inner)), None)
        return read and (lambda given: None if given is None else read(given))
    if isinstance(kind, type) and issubclass(kind, tuple) and kind is not tuple:
        readers = [_reader(hint) for hint in typing.get_type_hints(kind).values()]
        if not any(readers):
            return lambda given: kind(*given)
        return lambda given: kind(*_read(readers, given))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        named = {f.name: read for f in dataclasses.fields(kind) if (read := _reader(hints[f.name]))}
        return lambda given: kind(
            **{**given, **{name: read(given[name]) for name, read in named.items()}}
        )
    return None


def _read(readers: list[Any], given: Any) -> list[Any]:
    return [
        value if read is None else read(value) for read, value in zip(readers, given, strict=False)
    ]
