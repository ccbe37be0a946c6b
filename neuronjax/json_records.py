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
    TypeError, KeyError: something else was written, such as more entries than a tuple declares.
    """
    record: Any = kind
    read = _reader(record) or record
    return typing.cast(_T, read(given))


@functools.cache
def _reader(kind: Any) -> Any:
    """What makes a value of an annotated type from JSON; None: JSON has it as it is."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        if inner[-1] is Ellipsis:
            read = _reader(inner[0])
            return (lambda given: tuple(map(read, given))) if read else tuple
        readers = tuple(map(_reader, inner))
        return lambda given: tuple(_read(readers, given))
    if origin is not None and issubclass(origin, Mapping):
        read = _reader(inner[1])
        return read and (lambda given: {key: read(value) for key, value in given.items()})
    if origin is types.UnionType:
        read = next(filter(None, map(_reader, inner)), None)
        return read and (lambda given: None if given is None else read(given))
    if isinstance(kind, type) and issubclass(kind, tuple) and kind is not tuple:
        readers = tuple(map(_reader, typing.get_type_hints(kind).values()))
        return lambda given: kind(*(_read(readers, given) if any(readers) else given))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        named = {f.name: read for f in dataclasses.fields(kind) if (read := _reader(hints[f.name]))}
        return lambda given: kind(
            **{**given, **{name: read(given[name]) for name, read in named.items()}}
        )
    return None


def _read(readers: tuple[Any, ...], given: Any) -> list[Any]:
    if len(given) != len(readers):
        raise TypeError(f"{len(readers)} entries are declared, and {len(given)} were written")
    return [
        value if read is None else read(value) for read, value in zip(readers, given, strict=True)
    ]
