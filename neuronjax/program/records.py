"""Frozen records with other values in some of their fields."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

Record = TypeVar("Record")
_Get = Callable[[Any], Any]
_Put = Callable[[Any, Any], None]


def altered(record: Record, **values: Any) -> Record:
    """A record of slots with other `values` in some fields, the others as they are.

    Unlike ``dataclasses.replace``, it takes the values as they are: they are not checked, and what
    follows from them is not computed again. Passes make most of their records in this way.
    """
    kind: Any = type(record)
    new: Record = object.__new__(kind)
    slots, puts = _slots(kind)
    for get, put in slots:
        put(new, get(record))
    for name, value in values.items():
        puts[name](new, value)
    return new


@functools.cache
def _slots(kind: Any) -> tuple[tuple[tuple[_Get, _Put], ...], dict[str, _Put]]:
    """What reads and writes fields past the class, and what writes them by name."""
    slots = {field.name: getattr(kind, field.name) for field in dataclasses.fields(kind)}
    ways = tuple((slot.__get__, slot.__set__) for slot in slots.values())
    return ways, {name: slot.__set__ for name, slot in slots.items()}
